# SPDX-License-Identifier: Apache-2.0
"""The wheel has no compiled module of Python, but libraries of this kind of machine: any
Python 3, one platform. CMake's target python-wheel puts them into a copy of this folder."""

from setuptools import Distribution, setup
from wheel.bdist_wheel import bdist_wheel


class Platform(bdist_wheel):
    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


class WithLibraries(Distribution):
    def has_ext_modules(self):
        return True


setup(cmdclass={"bdist_wheel": Platform}, distclass=WithLibraries)
