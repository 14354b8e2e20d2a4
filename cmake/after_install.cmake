# After `make install`: the loader learns of the library where it may, and what is left for the user to do is said. Nothing
# of this concerns a packager, who installs under DESTDIR.
if(NOT "$ENV{DESTDIR}" STREQUAL "")
    return()
endif()
set(libraries ${CMAKE_INSTALL_PREFIX}/${OPENPI_LIBDIR})
set(programs ${CMAKE_INSTALL_PREFIX}/${OPENPI_BINDIR})

# ldconfig -v -N -X lists the folders that the loader searches, and changes nothing.
find_program(OPENPI_LDCONFIG ldconfig HINTS /sbin /usr/sbin)
set(searched OFF)
if(OPENPI_LDCONFIG)
    execute_process(COMMAND ${OPENPI_LDCONFIG} -v -N -X OUTPUT_VARIABLE folders ERROR_QUIET)
    string(FIND "\n${folders}" "\n${libraries}:" found)
    if(NOT found EQUAL -1)
        set(searched ON)
        execute_process(COMMAND ${OPENPI_LDCONFIG} RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
        if(failed)
            message(STATUS "The loader does not find libopenpi.so yet; as root: sudo ldconfig")
        endif()
    endif()
endif()
if(NOT searched)
    message(STATUS "The loader does not search ${libraries}. For programs that use libopenpi.so:\n"
                   "     export LD_LIBRARY_PATH=${libraries}\n"
                   "     export PKG_CONFIG_PATH=${libraries}/pkgconfig CMAKE_PREFIX_PATH=${CMAKE_INSTALL_PREFIX}")
endif()
if(NOT ":$ENV{PATH}:" MATCHES ":${programs}/?:")
    message(STATUS "${programs} is not in PATH. For the command openpi:\n     export PATH=${programs}:$PATH")
endif()
