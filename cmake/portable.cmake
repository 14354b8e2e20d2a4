# The command and the library as tools/release ships them: for every Linux with glibc 2.28, with all other libraries inside.
# Nothing builds them but by name; tools/release first fills the folder that tools/static-link reads.
set(openpi_portable ${CMAKE_BINARY_DIR}/portable)
file(MAKE_DIRECTORY ${openpi_portable})
add_executable(portable_command EXCLUDE_FROM_ALL $<TARGET_OBJECTS:openpi_cli>)
target_link_libraries(portable_command PRIVATE openpi_cli)
add_library(portable_library SHARED EXCLUDE_FROM_ALL $<TARGET_OBJECTS:openpi_objects>)
target_link_libraries(portable_library PRIVATE openpi_objects)
set_target_properties(portable_library PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${OPENPI_SOVERSION})
set_target_properties(portable_command portable_library PROPERTIES
    OUTPUT_NAME openpi RUNTIME_OUTPUT_DIRECTORY ${openpi_portable} LIBRARY_OUTPUT_DIRECTORY ${openpi_portable} SKIP_BUILD_RPATH ON
    LINK_DEPENDS ${CMAKE_SOURCE_DIR}/tools/static-link RULE_LAUNCH_LINK "${CMAKE_SOURCE_DIR}/tools/static-link ${openpi_portable}")
