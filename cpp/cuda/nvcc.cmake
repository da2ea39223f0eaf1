# cmake -DWERROR=ON -P nvcc.cmake -- NVCC ARGUMENT...
#
# Runs nvcc. That a warpgroup's products run one after the other makes a kernel several times slower, and is no
# warning that nvcc could be told to treat as an error: where warnings are errors, it is one here.

set(command "")
set(behind FALSE)
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(i RANGE ${last})
  if(behind)
    list(APPEND command "${CMAKE_ARGV${i}}")
  elseif(CMAKE_ARGV${i} STREQUAL "--")
    set(behind TRUE)
  endif()
endforeach()
execute_process(COMMAND ${command} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(output)
  message("${output}")
endif()
if(NOT status EQUAL 0)
  message(FATAL_ERROR "nvcc failed: ${status}")
endif()
if(WERROR AND output MATCHES "instructions are serialized")
  message(FATAL_ERROR "the products of a warpgroup are serialized")
endif()
