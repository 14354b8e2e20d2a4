# What `make install` installs: the command and its man pages, the header, both libraries, openpi.pc.
include(GNUInstallDirs)

# libopenpi.a as users get it: one object whose only global symbols are openpi_*. Everything else is hidden already
# (CMAKE_C_VISIBILITY_PRESET), so that joining the objects and localising what is hidden leaves the public ones.
find_program(OPENPI_OBJCOPY NAMES ${CMAKE_OBJCOPY} objcopy REQUIRED)
add_custom_command(
    OUTPUT ${CMAKE_BINARY_DIR}/libopenpi.a
    COMMAND ${CMAKE_C_COMPILER} -r -nostdlib -o openpi_joined.o $<TARGET_OBJECTS:openpi_objects>
    COMMAND ${OPENPI_OBJCOPY} --localize-hidden openpi_joined.o
    COMMAND ${CMAKE_COMMAND} -E rm -f libopenpi.a
    COMMAND ${CMAKE_AR} rcs libopenpi.a openpi_joined.o
    DEPENDS openpi_objects $<TARGET_OBJECTS:openpi_objects>
    WORKING_DIRECTORY ${CMAKE_BINARY_DIR}
    COMMENT "Joining libopenpi.a"
    COMMAND_EXPAND_LISTS VERBATIM)
add_custom_target(openpi_archive ALL DEPENDS ${CMAKE_BINARY_DIR}/libopenpi.a)

# Man pages come from the same records as --help.
set(OPENPI_PAGES ${CMAKE_BINARY_DIR}/man/openpi.1)
add_custom_command(
    OUTPUT ${CMAKE_BINARY_DIR}/man/openpi.1
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/man
    COMMAND openpi_command --man > ${CMAKE_BINARY_DIR}/man/openpi.1
    DEPENDS openpi_command VERBATIM)
foreach(verb run inspect synth verify bench roof devices profile trace)
    add_custom_command(
        OUTPUT ${CMAKE_BINARY_DIR}/man/openpi-${verb}.1
        COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/man
        COMMAND openpi_command ${verb} --man > ${CMAKE_BINARY_DIR}/man/openpi-${verb}.1
        DEPENDS openpi_command VERBATIM)
    list(APPEND OPENPI_PAGES ${CMAKE_BINARY_DIR}/man/openpi-${verb}.1)
endforeach()
add_custom_target(openpi_man ALL DEPENDS ${OPENPI_PAGES})

# openpi.pc speaks of where it lies, so that an installed tree may be moved and DESTDIR works.
file(RELATIVE_PATH OPENPI_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" OPENPI_PREFIX ${OPENPI_PREFIX})
get_filename_component(OPENPI_MSGPACK ${MSGPACK_LIBRARY} NAME_WE)
string(REGEX REPLACE "^lib" "" OPENPI_MSGPACK ${OPENPI_MSGPACK})
configure_file(${CMAKE_SOURCE_DIR}/cmake/openpi.pc.in ${CMAKE_BINARY_DIR}/openpi.pc @ONLY)

install(TARGETS openpi_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS openpi_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${CMAKE_BINARY_DIR}/libopenpi.a DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${CMAKE_SOURCE_DIR}/include/openpi.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${CMAKE_BINARY_DIR}/openpi.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${OPENPI_PAGES} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
