# openpi_source_hash(VARIABLE FILE…): 16 hexadecimal digits that change with what a compiler sees of these C, C++ or CUDA
# files, in this order. Comments and white space do not count. Tuning tables keep such hashes of the kernels that they were
# measured with (src/model/tuning.h). A change of one of the files runs cmake again (but from a script, cmake -P).
function(openpi_source_hash variable)
    set(text)
    foreach(file ${ARGN})
        if(NOT CMAKE_SCRIPT_MODE_FILE)
            set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
        endif()
        file(READ ${file} code)
        string(REGEX REPLACE "/\\*([^*]|\\*+[^*/])*\\*+/" "" code "${code}")
        string(REGEX REPLACE "//[^\n]*" "" code "${code}")
        string(REGEX REPLACE "[ \t\r\n]+" "" code "${code}")
        string(APPEND text "${code}\n")
    endforeach()
    string(SHA256 hash "${text}")
    string(SUBSTRING ${hash} 0 16 hash)
    set(${variable} ${hash} PARENT_SCOPE)
endfunction()
