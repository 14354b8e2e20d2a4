# cmake -DSOURCE=src -DOUT=FILE -P cuda_modules.cmake: a line for every kernel family of src/backend/gpu/cuda, that is for every
# X.cu with its X.c: MODULE(X, the one path that it is made for or NULL, a hash of its sources).
#
# The hash is of what decides how the family's kernels run: X.c, X.cu and what that includes.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/source_hash.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/cuda_chips.cmake)

openpi_cuda_chips("${SOURCE}/backend/gpu/cuda/chips.h")
file(GLOB_RECURSE kernels "${SOURCE}/backend/gpu/cuda/*.cu")
list(SORT kernels COMPARE FILE_BASENAME)     # the order in which families are asked: by name, whichever folder they lie in
set(lines "/* Written by cmake/cuda_modules.cmake. */\n")
foreach(file IN LISTS kernels)
    get_filename_component(name "${file}" NAME_WE)
    set(path NULL)
    openpi_cuda_suffix(suffix ${name})
    if(NOT suffix STREQUAL any)
        set(path "\"${openpi_cuda_path_${suffix}}\"")
    endif()
    set(openpi_files)
    openpi_included("${file}" "${SOURCE}")
    string(REGEX REPLACE "u$" "" host "${file}")
    openpi_source_hash(hash "${host}" ${openpi_files})
    string(APPEND lines "MODULE(${name}, ${path}, 0x${hash}u)\n")
endforeach()
file(WRITE "${OUT}" "${lines}")
