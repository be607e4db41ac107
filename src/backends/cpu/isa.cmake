# SPDX-License-Identifier: Apache-2.0
# The files of isa/ and the flags of each: one line a level. Everything else is baseline code (D26), but for the
# AVX2 loops of core/cast.c, which carry their target themselves and are chosen by the context's level.
function(rapt_cpu_level level)
  target_sources(rapt_backend_cpu PRIVATE ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/isa/${level}.c)
  set_source_files_properties(${CMAKE_CURRENT_FUNCTION_LIST_DIR}/isa/${level}.c PROPERTIES COMPILE_OPTIONS "${ARGN}")
endfunction()

rapt_cpu_level(scalar)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  rapt_cpu_level(avx2 -mavx2 -mfma -mf16c)
  rapt_cpu_level(avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c)
endif()
