# A build for 64-bit ARM on another machine: tools/sysroot unpacks the libraries, then
#   make BUILD=build-aarch64 CMAKE_FLAGS=-DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(OPENPI_SYSROOT ${CMAKE_CURRENT_LIST_DIR}/../build-sysroot CACHE PATH "the folder that tools/sysroot filled")
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES OPENPI_SYSROOT)
get_filename_component(CMAKE_SYSROOT "${OPENPI_SYSROOT}" ABSOLUTE)
if(NOT EXISTS "${CMAKE_SYSROOT}/.whole")
    message(FATAL_ERROR "${CMAKE_SYSROOT} is no folder that tools/sysroot filled, expected one: tools/sysroot ${CMAKE_SYSROOT}")
endif()
# The folder's place is in no program: msgpack's headers have assertions, which name their file.
set(CMAKE_C_FLAGS_INIT "-ffile-prefix-map=${CMAKE_SYSROOT}=")

# Programs are this machine's, everything else the other's.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${CMAKE_SYSROOT}")
set(ENV{PKG_CONFIG_LIBDIR} "${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${CMAKE_SYSROOT}/usr/share/pkgconfig")
set(ENV{PKG_CONFIG_PATH} "")

# What the build makes and runs, such as the man pages' text, and the tests.
find_program(OPENPI_QEMU NAMES qemu-aarch64-static qemu-aarch64)
if(OPENPI_QEMU)
    set(CMAKE_CROSSCOMPILING_EMULATOR "${OPENPI_QEMU};-L;${CMAKE_SYSROOT}")
endif()
