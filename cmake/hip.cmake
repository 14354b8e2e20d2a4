# The AMD kernels: every kernels/X.c becomes a code object for each chip, embedded by src/backend/gpu/hip/modules.c. They are plain C,
# so clang alone makes them; nothing of ROCm is linked, or needed but the runtime, which is opened when a device is. Without clang the
# backend is built empty and says so.
set(OPENPI_HIP ON CACHE BOOL "build the AMD kernels where clang 22 or newer and its lld are found")
set(OPENPI_HIP_ARCHS "gfx942;gfx950" CACHE STRING "chips of the AMD kernels: MI300, MI350")

# A kernel family is two files, kernels/X.c and X.c.
set(openpi_hip_source ${CMAKE_SOURCE_DIR}/src/backend/gpu/hip)
file(GLOB openpi_hip_kernels CONFIGURE_DEPENDS ${openpi_hip_source}/kernels/*.c)
file(GLOB openpi_hip_headers CONFIGURE_DEPENDS ${openpi_hip_source}/*.h ${openpi_hip_source}/kernels/*.h ${openpi_hip_source}/machine/*.h
     ${CMAKE_SOURCE_DIR}/src/backend/gpu/kernels/*.h)
list(APPEND openpi_hip_headers ${CMAKE_SOURCE_DIR}/src/base/hash.h)
set(openpi_hip_hosts)
foreach(kernel IN LISTS openpi_hip_kernels)
    get_filename_component(name ${kernel} NAME)
    if(NOT EXISTS ${openpi_hip_source}/${name})
        message(FATAL_ERROR "${kernel} has no host side: expected ${openpi_hip_source}/${name} with its gpu_family")
    endif()
    list(APPEND openpi_hip_hosts ${openpi_hip_source}/${name})
endforeach()
set(openpi_hip_lists ${CMAKE_BINARY_DIR}/hip_modules.inc ${CMAKE_BINARY_DIR}/hip_code.inc)
string(REPLACE ";" " " openpi_hip_archs "${OPENPI_HIP_ARCHS}")
add_custom_command(OUTPUT ${openpi_hip_lists}
                   COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_SOURCE_DIR}/src -DARCHS=${openpi_hip_archs} -DFOLDER=${CMAKE_BINARY_DIR}
                           -P ${CMAKE_SOURCE_DIR}/cmake/hip_modules.cmake
                   DEPENDS ${openpi_hip_kernels} ${openpi_hip_hosts} ${openpi_hip_headers} ${CMAKE_SOURCE_DIR}/cmake/hip_modules.cmake
                           ${CMAKE_SOURCE_DIR}/cmake/source_hash.cmake
                   COMMENT "AMD kernels: their list" VERBATIM)
target_sources(openpi_objects PRIVATE ${openpi_hip_lists})

if(OPENPI_HIP)
    find_program(OPENPI_AMD_CLANG NAMES clang-22 clang-23 clang)
endif()
# It must know the chips and find its linker: a kernel of nothing says so.
set(openpi_hip_found OFF)
if(OPENPI_HIP AND OPENPI_AMD_CLANG)
    set(openpi_hip_flags -x c -std=gnu11 --target=amdgcn-amd-amdhsa -mcode-object-version=5 -ffreestanding -nostdlibinc -nogpulib -O3
        -ffp-contract=off -Wall -Wextra -Werror)
    set(openpi_hip_found ON)
    file(WRITE ${CMAKE_BINARY_DIR}/hip/probe.c "__attribute__((amdgpu_kernel)) void probe(int *x) { *x = 1; }\n")
    foreach(arch IN LISTS OPENPI_HIP_ARCHS)
        execute_process(COMMAND ${OPENPI_AMD_CLANG} ${openpi_hip_flags} -mcpu=${arch} -o ${CMAKE_BINARY_DIR}/hip/probe.co ${CMAKE_BINARY_DIR}/hip/probe.c
                        RESULT_VARIABLE openpi_hip_failed OUTPUT_QUIET ERROR_QUIET)
        if(openpi_hip_failed)
            set(openpi_hip_found OFF)
        endif()
    endforeach()
endif()

set(openpi_hip_said none)
if(NOT openpi_hip_found)
    set(openpi_hip_absent "no clang 22 or newer")
    if(OPENPI_HIP)
        message(STATUS "AMD kernels: none, clang 22 with lld was not found (OPENPI_AMD_CLANG)")
    else()
        set(openpi_hip_absent "OPENPI_HIP=OFF")
        message(STATUS "AMD kernels: none, switched off (OPENPI_HIP=OFF)")
    endif()
    set_source_files_properties(${openpi_hip_source}/vendor.c PROPERTIES COMPILE_DEFINITIONS "OPENPI_HIP_ABSENT=\"${openpi_hip_absent}\"")
else()
    string(REPLACE ";" " " openpi_hip_said "${OPENPI_HIP_ARCHS}")
    set(openpi_hip_folder ${CMAKE_BINARY_DIR}/hip)
    set(openpi_hip_files)
    foreach(kernel IN LISTS openpi_hip_kernels)
        get_filename_component(name ${kernel} NAME_WE)
        foreach(arch IN LISTS OPENPI_HIP_ARCHS)
            set(out ${openpi_hip_folder}/${name}_${arch}.co)
            add_custom_command(OUTPUT ${out}
                               COMMAND ${OPENPI_AMD_CLANG} ${openpi_hip_flags} -mcpu=${arch} -I${openpi_hip_source}/machine -I${CMAKE_SOURCE_DIR}/src
                                       -MD -MF ${out}.d -MT ${out} -o ${out} ${kernel}
                               DEPENDS ${kernel} DEPFILE ${out}.d
                               COMMENT "AMD kernels: ${name}, ${arch}" VERBATIM)
            list(APPEND openpi_hip_files ${out})
        endforeach()
    endforeach()
    add_custom_target(amd_kernels DEPENDS ${openpi_hip_files})      # the code objects alone, for tools/amd-report
    set_source_files_properties(${openpi_hip_source}/modules.c PROPERTIES
        OBJECT_DEPENDS "${openpi_hip_files};${openpi_hip_lists}"
        COMPILE_DEFINITIONS "OPENPI_HIP_FOLDER=\"${openpi_hip_folder}\"")
    message(STATUS "AMD kernels: ${OPENPI_AMD_CLANG}, ${openpi_hip_archs}")
endif()
