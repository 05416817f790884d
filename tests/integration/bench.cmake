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
