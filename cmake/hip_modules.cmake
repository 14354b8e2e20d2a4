# cmake -DSOURCE=src -DARCHS="gfx942 gfx950" -DFOLDER=FOLDER -P hip_modules.cmake: two lists of the kernel families of
# src/backend/gpu/hip, that is of every kernels/X.c with its X.c.
#
#   hip_modules.inc   MODULE(X, a hash of its sources)
#   hip_code.inc      a line CODE(X, ARCH) for every architecture, between IMAGE_BEGIN(X) and IMAGE_END where these are defined
#
# The hash is of what decides how the family's kernels run: X.c, kernels/X.c and what that includes.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/source_hash.cmake)

separate_arguments(archs UNIX_COMMAND "${ARCHS}")
file(GLOB kernels "${SOURCE}/backend/gpu/hip/kernels/*.c")
set(modules "/* Written by cmake/hip_modules.cmake. */\n")
set(code "/* Written by cmake/hip_modules.cmake. */\n#ifndef IMAGE_BEGIN\n#define IMAGE_BEGIN(name)\n#define IMAGE_END\n#endif\n")
foreach(file IN LISTS kernels)
    get_filename_component(name "${file}" NAME_WE)
    set(openpi_files)
    openpi_included("${file}" "${SOURCE}/backend/gpu/hip/machine" "${SOURCE}")
    openpi_source_hash(hash "${SOURCE}/backend/gpu/hip/${name}.c" ${openpi_files})
    string(APPEND modules "MODULE(${name}, 0x${hash}u)\n")
    string(APPEND code "IMAGE_BEGIN(${name})\n")
    foreach(arch IN LISTS archs)
        string(APPEND code "CODE(${name}, ${arch})\n")
    endforeach()
    string(APPEND code "IMAGE_END\n")
endforeach()
file(WRITE "${FOLDER}/hip_modules.inc" "${modules}")
file(WRITE "${FOLDER}/hip_code.inc" "${code}#undef IMAGE_BEGIN\n#undef IMAGE_END\n")
