# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` lays down. The tree works wherever it is put: nothing in it names the prefix, unless a folder of
# it is given as an absolute path.
include(CMakePackageConfigHelpers)
set(cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/rapt)

# A folder of the prefix as rapt.pc names it.
function(rapt_pc_folder variable folder)
  if(IS_ABSOLUTE ${folder})
    set(${variable} ${folder} PARENT_SCOPE)
  else()
    set(${variable} \${prefix}/${folder} PARENT_SCOPE)
  endif()
endfunction()
rapt_pc_folder(RAPT_PC_LIBDIR ${CMAKE_INSTALL_LIBDIR})
rapt_pc_folder(RAPT_PC_INCLUDEDIR ${CMAKE_INSTALL_INCLUDEDIR})
if(IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
  set(RAPT_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
else()
  file(RELATIVE_PATH up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  string(REGEX REPLACE "/$" "" RAPT_PC_PREFIX \${pcfiledir}/${up})
endif()
configure_file(src/rapt.pc.in rapt.pc @ONLY)

configure_package_config_file(src/raptConfig.cmake.in raptConfig.cmake INSTALL_DESTINATION ${cmake_dir})
write_basic_package_version_file(raptConfigVersion.cmake COMPATIBILITY SameMinorVersion)
set_target_properties(rapt_static PROPERTIES EXPORT_NAME static)   # rapt::rapt and rapt::static

install(TARGETS rapt rapt_static EXPORT rapt-targets)
install(EXPORT rapt-targets NAMESPACE rapt:: DESTINATION ${cmake_dir})
install(DIRECTORY include/rapt DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${CMAKE_BINARY_DIR}/rapt.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${CMAKE_BINARY_DIR}/raptConfig.cmake ${CMAKE_BINARY_DIR}/raptConfigVersion.cmake DESTINATION ${cmake_dir})
if(RAPT_BUILD_CLI)
  if(NOT IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR} AND NOT IS_ABSOLUTE ${CMAKE_INSTALL_BINDIR})
    file(RELATIVE_PATH to_lib /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
    set_target_properties(rapt_cli PROPERTIES INSTALL_RPATH $ORIGIN/${to_lib})
  else()
    set_target_properties(rapt_cli PROPERTIES INSTALL_RPATH ${CMAKE_INSTALL_FULL_LIBDIR})
  endif()
  install(TARGETS rapt_cli)
endif()
