# The CUDA sources, compiled when DS4_CUDA is on. Needs nvcc, not a GPU.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 86-real 89-real 90a-real 100-real 120)
endif()
enable_language(CUDA)

file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/backend/cuda/*.cu")
if(cuda_sources)
  add_library(ds4_backend_cuda STATIC ${cuda_sources})
  target_compile_options(ds4_backend_cuda PRIVATE -std=c++20)  # CMake 3.25 cannot ask nvcc for it by a property
  target_include_directories(ds4_backend_cuda PRIVATE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src")
else()
  message(STATUS "DS4_CUDA: ${CMAKE_CUDA_COMPILER} works; this version has no CUDA sources, so programs run on the CPU")
endif()
