# What `cmake --install` puts where: programs, public headers, libds4.a with a CMake package, the bundled model.
# (ds4, ds4-bench, ds4-bench-plot and ds4-eval install themselves.)
include(CMakePackageConfigHelpers)

if(TARGET ds4-quantize)
  install(TARGETS ds4-quantize RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/ds4")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/ds4" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")
install(TARGETS ds4_archive EXPORT ds4Targets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(EXPORT ds4Targets NAMESPACE ds4:: DESTINATION "${package_dir}")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/ds4Config.cmake.in"
  "${PROJECT_BINARY_DIR}/ds4Config.cmake" INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/ds4ConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/ds4Config.cmake" "${PROJECT_BINARY_DIR}/ds4ConfigVersion.cmake"
  DESTINATION "${package_dir}")

file(GLOB models CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/models/nano/*.gguf")
install(FILES ${models} DESTINATION "${CMAKE_INSTALL_DATADIR}/ds4")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/NOTICE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
