# The CUDA kernels: every .cu becomes one file of machine code for several chips, embedded by src/backend/gpu/cuda/modules.c.
# Nothing of CUDA is linked or needed at run time but the driver. Without nvcc the backend is built empty and says so.
set(OPENPI_CUDA ON CACHE BOOL "build the CUDA kernels where nvcc 12.4 or newer is found")
set(OPENPI_CUDA_ARCHS "80;86;87;89;90;100;120" CACHE STRING "chips of the portable kernels")
set(OPENPI_CUDA_HOPPER_ARCHS "90a" CACHE STRING "chips of the Hopper kernels")

# A kernel family is two files, X.cu and X.c. The name says what it is for: X_hopper for Hopper, any other for all chips.
set(openpi_cuda_source ${CMAKE_SOURCE_DIR}/src/backend/gpu/cuda)
file(GLOB openpi_cuda_kernels CONFIGURE_DEPENDS ${openpi_cuda_source}/*.cu)
file(GLOB openpi_cuda_headers CONFIGURE_DEPENDS ${openpi_cuda_source}/*.h ${openpi_cuda_source}/*.cuh
     ${CMAKE_SOURCE_DIR}/src/backend/gpu/kernels/*.h)
list(APPEND openpi_cuda_headers ${CMAKE_SOURCE_DIR}/src/base/hash.h)
set(openpi_cuda_hosts)
foreach(kernel IN LISTS openpi_cuda_kernels)
    string(REGEX REPLACE "u$" "" host ${kernel})
    if(NOT EXISTS ${host})
        message(FATAL_ERROR "${kernel} has no host side: expected ${host} with its gpu_family")
    endif()
    list(APPEND openpi_cuda_hosts ${host})
endforeach()
set(openpi_cuda_list ${CMAKE_BINARY_DIR}/cuda_modules.inc)
add_custom_command(OUTPUT ${openpi_cuda_list}
                   COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_SOURCE_DIR}/src -DOUT=${openpi_cuda_list} -P ${CMAKE_SOURCE_DIR}/cmake/cuda_modules.cmake
                   DEPENDS ${openpi_cuda_kernels} ${openpi_cuda_hosts} ${openpi_cuda_headers} ${CMAKE_SOURCE_DIR}/cmake/cuda_modules.cmake
                           ${CMAKE_SOURCE_DIR}/cmake/source_hash.cmake
                   COMMENT "CUDA kernels: their list" VERBATIM)
target_sources(openpi_objects PRIVATE ${openpi_cuda_list})

if(OPENPI_CUDA)
    find_program(OPENPI_NVCC nvcc HINTS /usr/local/cuda/bin /opt/cuda/bin)
endif()
set(openpi_cuda_found OFF)
if(OPENPI_CUDA AND OPENPI_NVCC)
    execute_process(COMMAND ${OPENPI_NVCC} --version OUTPUT_VARIABLE openpi_nvcc_text ERROR_QUIET)
    if(openpi_nvcc_text MATCHES "release ([0-9]+)\\.([0-9]+)")
        set(openpi_nvcc_version ${CMAKE_MATCH_1}.${CMAKE_MATCH_2})
        math(EXPR openpi_cuda_version "${CMAKE_MATCH_1} * 1000 + ${CMAKE_MATCH_2} * 10")
        if(openpi_cuda_version GREATER_EQUAL 12040)
            set(openpi_cuda_found ON)
        endif()
    endif()
endif()

if(NOT openpi_cuda_found)
    message(STATUS "CUDA kernels: none, nvcc 12.4 or newer was not found (OPENPI_NVCC)")
else()
    set(openpi_cuda_folder ${CMAKE_BINARY_DIR}/cuda)
    file(MAKE_DIRECTORY ${openpi_cuda_folder})
    set(openpi_cuda_files)
    # An older nvcc knows fewer chips.
    execute_process(COMMAND ${OPENPI_NVCC} --list-gpu-code OUTPUT_VARIABLE openpi_cuda_known ERROR_QUIET)
    function(openpi_cuda_kernel name with_ptx)
        set(codes)
        set(first)
        foreach(arch ${ARGN})
            string(REGEX REPLACE "[a-z]" "" number ${arch})
            if(NOT openpi_cuda_known MATCHES "sm_${number}")
                continue()
            endif()
            list(APPEND codes "-gencode=arch=compute_${arch},code=sm_${arch}")
            if(NOT first)
                set(first ${arch})
            endif()
        endforeach()
        if(with_ptx AND first)
            list(APPEND codes "-gencode=arch=compute_${first},code=compute_${first}")
        endif()
        add_custom_command(OUTPUT ${openpi_cuda_folder}/${name}.fatbin
                           COMMAND ${OPENPI_NVCC} -std=c++17 -O3 -I${CMAKE_SOURCE_DIR}/src -fatbin $<$<CONFIG:Debug>:-DRESIDENT_WATCHDOG> ${codes} -o ${openpi_cuda_folder}/${name}.fatbin ${openpi_cuda_source}/${name}.cu
                           DEPENDS ${openpi_cuda_source}/${name}.cu ${openpi_cuda_headers}
                           COMMENT "CUDA kernels: ${name}" COMMAND_EXPAND_LISTS VERBATIM)
    endfunction()
    foreach(kernel IN LISTS openpi_cuda_kernels)
        get_filename_component(name ${kernel} NAME_WE)
        if(name MATCHES "_hopper$")
            openpi_cuda_kernel(${name} OFF ${OPENPI_CUDA_HOPPER_ARCHS})
        else()
            openpi_cuda_kernel(${name} ON ${OPENPI_CUDA_ARCHS})
        endif()
        list(APPEND openpi_cuda_files ${openpi_cuda_folder}/${name}.fatbin)
    endforeach()
    set_source_files_properties(${openpi_cuda_source}/modules.c PROPERTIES
        OBJECT_DEPENDS "${openpi_cuda_files}"
        COMPILE_DEFINITIONS "OPENPI_CUDA_VERSION=${openpi_cuda_version};OPENPI_CUDA_FOLDER=\"${openpi_cuda_folder}\"")
    message(STATUS "CUDA kernels: nvcc ${openpi_nvcc_version}, portable ${OPENPI_CUDA_ARCHS}, Hopper ${OPENPI_CUDA_HOPPER_ARCHS}")
endif()
target_link_libraries(openpi_objects PUBLIC ${CMAKE_DL_LIBS})
