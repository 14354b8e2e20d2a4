# The CPU's kernels: src/backend/cpu/ is the same everywhere, of its folders the build takes that of its architecture.
#
# openpi_cpu           the folder: x86, arm
# openpi_cpu_said      what `openpi --version` says of its levels
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    set(openpi_cpu x86)
    set(openpi_cpu_said "avx2 to amx")
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    set(openpi_cpu arm)
    set(openpi_cpu_said "neon to neon_bf16")
else()
    message(FATAL_ERROR "CMAKE_SYSTEM_PROCESSOR is \"${CMAKE_SYSTEM_PROCESSOR}\", expected x86_64 or aarch64")
endif()
set(openpi_cpu_folder ${CMAKE_SOURCE_DIR}/src/backend/cpu/${openpi_cpu})
file(GLOB openpi_cpu_others LIST_DIRECTORIES true ${CMAKE_SOURCE_DIR}/src/backend/cpu/*)
foreach(other ${openpi_cpu_others})
    if(IS_DIRECTORY ${other} AND NOT other STREQUAL openpi_cpu_folder)
        list(FILTER OPENPI_SOURCES EXCLUDE REGEX "^${other}/")
    endif()
endforeach()

# A file's suffix names the instructions it may use; any folder may have such files.
set(openpi_avx2 -mavx2 -mfma -mf16c)
set(openpi_avx512 ${openpi_avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq)
set(openpi_avx512vnni ${openpi_avx512} -mavx512vnni)
set(openpi_avx512bf16 ${openpi_avx512vnni} -mavx512bf16)
set(openpi_amx ${openpi_avx512bf16} -mamx-tile -mamx-bf16 -mamx-int8)
set(openpi_neondot -march=armv8.2-a+dotprod)
set(openpi_neonbf16 -march=armv8.2-a+bf16+i8mm)     # not 8.6: Graviton 3 has both in an 8.4
foreach(source ${OPENPI_SOURCES})
    if(openpi_cpu STREQUAL x86 AND source MATCHES "_(avx2|avx512|avx512vnni|avx512bf16|amx)\\.c$")
        set(flags ${openpi_${CMAKE_MATCH_1}})
        if(NOT CMAKE_MATCH_1 STREQUAL avx2)
            list(APPEND flags -mprefer-vector-width=512)
        endif()
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${flags};-ffp-contract=fast;-O3")
    elseif(openpi_cpu STREQUAL arm AND source MATCHES "_(neon|neondot|neonbf16)\\.c$")
        # gcc would load all of B before it uses any, into registers that are sums.
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${openpi_${CMAKE_MATCH_1}};-ffp-contract=fast;-O3;$<$<C_COMPILER_ID:GNU>:-fno-schedule-insns>")
    endif()
endforeach()

# The kernels' hash: all of the backend but what opens the device, chooses its level, reports on it and takes memory.
include(cmake/source_hash.cmake)
file(GLOB openpi_cpu_kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/cpu/*.[ch] ${openpi_cpu_folder}/*.[ch])
list(FILTER openpi_cpu_kernels EXCLUDE REGEX "/(cpu|device|isa|levels|cpuid|brand|memory|roof)\\.[ch]$")
openpi_source_hash(openpi_cpu_hash ${openpi_cpu_kernels})
set_source_files_properties(${CMAKE_SOURCE_DIR}/src/backend/cpu/cpu.c PROPERTIES COMPILE_DEFINITIONS OPENPI_CPU_HASH=0x${openpi_cpu_hash})
