# At install: the units of systemd, with the path that the command has then. A packager's DESTDIR is not part of it.
set(OPENPI_BINARY ${CMAKE_INSTALL_PREFIX}/${OPENPI_BINDIR}/openpi)
set(openpi_units $ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/lib/systemd/system)
configure_file(${OPENPI_PACKAGING}/openpi@.service.in ${openpi_units}/openpi@.service @ONLY)
configure_file(${OPENPI_PACKAGING}/openpi.socket ${openpi_units}/openpi.socket COPYONLY)
message(STATUS "Installing: ${openpi_units}/openpi@.service, openpi.socket")
