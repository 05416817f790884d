# SPDX-License-Identifier: Apache-2.0
find_package(Python3 REQUIRED COMPONENTS Interpreter)

kvw_add_test(bench_rounds PLAIN LABEL unit SOURCES bench_rounds.c LIBS bench-parts)

# The program itself, a few rounds of it: that it works, not how fast.
add_test(NAME bench_program
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/bench_program.py)
set_tests_properties(bench_program PROPERTIES
  LABELS integration TIMEOUT 180
  FAIL_REGULAR_EXPRESSION "${KVW_SANITIZER_REPORT}"
  ENVIRONMENT "KVW_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};PYTHONDONTWRITEBYTECODE=1")

add_test(NAME bench_generate
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/bench_program.py generate)
set_tests_properties(bench_generate PROPERTIES
  LABELS "integration;long" TIMEOUT 300
  ENVIRONMENT "KVW_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};PYTHONDONTWRITEBYTECODE=1")

# Across ranks: two here, and, long, two on each of two emulated hosts.
foreach(where here hosts)
  set(arguments)
  if(where STREQUAL hosts)
    set(arguments ${PROJECT_SOURCE_DIR}/tests/mpi/hosts)
  endif()
  add_test(NAME bench_nodes_${where}
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/bench_nodes.py ${arguments})
  set_tests_properties(bench_nodes_${where} PROPERTIES
    LABELS integration TIMEOUT 180
    ENVIRONMENT "KVW_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};PYTHONDONTWRITEBYTECODE=1")
endforeach()
set_property(TEST bench_nodes_hosts APPEND PROPERTY LABELS long)

if(NOT KVW_SANITIZE)
  add_test(NAME install_script
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/check-install-script ${PROJECT_BINARY_DIR} ${PROJECT_SOURCE_DIR})
  set_tests_properties(install_script PROPERTIES LABELS integration TIMEOUT 60
    PASS_REGULAR_EXPRESSION "installed and uninstalled")
endif()
