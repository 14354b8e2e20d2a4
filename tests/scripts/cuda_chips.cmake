# cmake -DSOURCE=… -DWORK=… -P cuda_chips.cmake: a further suffix in the table of chips is a line and no more, and a table that
# cannot be read is refused.
cmake_minimum_required(VERSION 3.25)
include(${SOURCE}/cmake/cuda_chips.cmake)

function(expect what is want)
    if(NOT is STREQUAL want)
        message(SEND_ERROR "${what}: ${is}, expected ${want}")
    endif()
endfunction()

file(REMOVE_RECURSE ${WORK})
set(table ${WORK}/backend/gpu/cuda/chips.h)
file(WRITE ${table} "/* X(suffix, path, chips, major, minor) */\n#define CUDA_CHIPS(X) \\\n    X(\"next\", \"newest\", \"100a;103a\", 10, 0) \\\n"
                    "    X(\"hopper\", \"hopper\", \"90a\", 9, 0) \\\n    X(\"\", \"portable\", \"80;90\", 0, 0)\n")
openpi_cuda_chips(${table})
expect(suffixes "${openpi_cuda_suffixes}" "next;hopper")
expect(chips "${openpi_cuda_archs_next}" "100a;103a")
expect("portable chips" "${openpi_cuda_archs_any}" "80;90")

# The list of modules has the path of a family with that suffix.
foreach(name a_next b_hopper next c_next_d)
    file(WRITE ${WORK}/backend/gpu/cuda/small/${name}.cu "int k;\n")
    file(WRITE ${WORK}/backend/gpu/cuda/small/${name}.c "int h;\n")
endforeach()
execute_process(COMMAND ${CMAKE_COMMAND} -DSOURCE=${WORK} -DOUT=${WORK}/modules.inc -P ${SOURCE}/cmake/cuda_modules.cmake RESULT_VARIABLE failed)
expect("result of cuda_modules.cmake" "${failed}" 0)
file(STRINGS ${WORK}/modules.inc modules REGEX "^MODULE")
string(REGEX REPLACE "MODULE\\(([a-z_]+, [a-z\"A-Z]+), 0x[0-9a-f]+u\\)" "\\1" modules "${modules}")
expect(modules "${modules}" "a_next, \"newest\";b_hopper, \"hopper\";c_next_d, NULL;next, NULL")

function(expect_refused rows)
    file(WRITE ${table} "#define CUDA_CHIPS(X) \\\n${rows}\n")
    execute_process(COMMAND ${CMAKE_COMMAND} -DSOURCE=${WORK} -DOUT=${WORK}/modules.inc -P ${SOURCE}/cmake/cuda_modules.cmake
                    RESULT_VARIABLE failed ERROR_VARIABLE said)
    string(REGEX REPLACE "[ \n]+" " " said "${said}")     # where cmake breaks its lines depends on WORK's length
    if(failed EQUAL 0 OR NOT said MATCHES "chips.h: expected ")
        message(SEND_ERROR "was not refused with a sentence: ${rows}: ${said}")
    endif()
endfunction()
expect_refused("    X(\"hopper\", \"hopper\", \"90a\", 9, 0)")
expect_refused("    X(\"\", \"portable\", \"80\", 0, 0) \\\n    X(\"hopper\", \"hopper\", \"90a\", 9, 0)")
expect_refused("    X(\"hopper\", hopper, \"90a\", 9, 0) \\\n    X(\"\", \"portable\", \"80\", 0, 0)")
expect_refused("")
