# What `make install` installs: the command and its man pages, the headers, both libraries, openpi.pc, the cmake package,
# systemd's units.
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

# Man pages come from the same records as --help; the command says which verbs there are.
set(openpi_runner)
if(CMAKE_CROSSCOMPILING AND CMAKE_CROSSCOMPILING_EMULATOR)
    set(openpi_runner "${CMAKE_CROSSCOMPILING_EMULATOR};")
endif()
add_custom_command(
    OUTPUT ${CMAKE_BINARY_DIR}/man/openpi.1
    COMMAND ${CMAKE_COMMAND} "-DOPENPI=${openpi_runner}$<TARGET_FILE:openpi_command>" -DFOLDER=${CMAKE_BINARY_DIR}/man -P ${CMAKE_SOURCE_DIR}/cmake/man.cmake
    DEPENDS openpi_command ${CMAKE_SOURCE_DIR}/cmake/man.cmake
    COMMENT "Man pages" VERBATIM)
add_custom_target(openpi_man ALL DEPENDS ${CMAKE_BINARY_DIR}/man/openpi.1)

# openpi.pc speaks of where it lies, so that an installed tree may be moved and DESTDIR works.
file(RELATIVE_PATH OPENPI_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" OPENPI_PREFIX ${OPENPI_PREFIX})
get_filename_component(OPENPI_MSGPACK ${MSGPACK_LIBRARY} NAME_WE)
string(REGEX REPLACE "^lib" "" OPENPI_MSGPACK ${OPENPI_MSGPACK})
configure_file(${CMAKE_SOURCE_DIR}/cmake/openpi.pc.in ${CMAKE_BINARY_DIR}/openpi.pc @ONLY)

install(TARGETS openpi_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS openpi_shared EXPORT openpi-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${CMAKE_BINARY_DIR}/libopenpi.a DESTINATION ${CMAKE_INSTALL_LIBDIR})
foreach(header openpi.h openpi_engine.h openpi_policy.h openpi_tools.h openpi_runner.h openpi.hpp)
    install(FILES ${CMAKE_SOURCE_DIR}/include/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endforeach()
install(FILES ${CMAKE_BINARY_DIR}/openpi.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(DIRECTORY ${CMAKE_BINARY_DIR}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 FILES_MATCHING PATTERN "*.1")

# find_package(openpi) and the target openpi::openpi. Until version 1 a minor version may change what a caller sees.
include(CMakePackageConfigHelpers)
set(OPENPI_CMAKEDIR ${CMAKE_INSTALL_LIBDIR}/cmake/openpi)
set_target_properties(openpi_shared PROPERTIES EXPORT_NAME openpi)
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/openpi-config.cmake.in ${CMAKE_BINARY_DIR}/openpi-config.cmake
                              INSTALL_DESTINATION ${OPENPI_CMAKEDIR})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/openpi-config-version.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT openpi-targets NAMESPACE openpi:: DESTINATION ${OPENPI_CMAKEDIR})
install(FILES ${CMAKE_BINARY_DIR}/openpi-config.cmake ${CMAKE_BINARY_DIR}/openpi-config-version.cmake
        DESTINATION ${OPENPI_CMAKEDIR})

if(LWS_FOUND AND UV_FOUND)
    install(CODE "set(OPENPI_PACKAGING \"${CMAKE_SOURCE_DIR}/packaging\")
set(OPENPI_BINDIR \"${CMAKE_INSTALL_BINDIR}\")
include(\"${CMAKE_SOURCE_DIR}/cmake/systemd_units.cmake\")")
endif()
install(CODE "set(OPENPI_LIBDIR \"${CMAKE_INSTALL_LIBDIR}\")
set(OPENPI_BINDIR \"${CMAKE_INSTALL_BINDIR}\")
include(\"${CMAKE_SOURCE_DIR}/cmake/after_install.cmake\")")
