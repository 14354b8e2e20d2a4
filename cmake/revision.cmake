# Which revision of the sources a build is of: REVISION_FILE gets it as C at every build, rewritten only where it changed.
# Included, it makes the target openpi_revision; run as a script (cmake -P), it writes the file.
if(NOT CMAKE_SCRIPT_MODE_FILE)
    set(openpi_revision_file ${CMAKE_BINARY_DIR}/revision.c)
    add_custom_target(openpi_revision
        COMMAND ${CMAKE_COMMAND} -DREVISION_FILE=${openpi_revision_file} -DREVISION_SOURCE=${CMAKE_SOURCE_DIR} -P ${CMAKE_CURRENT_LIST_FILE}
        BYPRODUCTS ${openpi_revision_file} VERBATIM)
    return()
endif()
set(revision "")
find_program(GIT git)
if(GIT)
    execute_process(COMMAND ${GIT} -C ${REVISION_SOURCE} describe --always --dirty --abbrev=12
                    OUTPUT_VARIABLE revision OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT revision MATCHES "^[0-9A-Za-z._-]+$")
    set(revision "unknown")
endif()
set(text "/* Written by cmake/revision.cmake. */\nextern const char openpi_revision[];\nconst char openpi_revision[] = \"${revision}\";\n")
if(EXISTS ${REVISION_FILE})
    file(READ ${REVISION_FILE} before)
endif()
if(NOT "${before}" STREQUAL "${text}")
    file(WRITE ${REVISION_FILE} "${text}")
endif()
