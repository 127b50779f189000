# The CUDA backend, compiled when DS4_CUDA is on. Needs nvcc, not a GPU.
file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS
  "${PROJECT_SOURCE_DIR}/src/backend/cuda/*.cu" "${PROJECT_SOURCE_DIR}/src/backend/cuda/*.cpp")
add_library(ds4_backend_cuda STATIC ${cuda_sources})
# CMake 3.25 cannot ask nvcc for C++20 by a property.
target_compile_options(ds4_backend_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>)
target_link_libraries(ds4_backend_cuda PUBLIC ds4_model ds4_backend_cpu CUDA::cudart_static
  PRIVATE $<BUILD_INTERFACE:ds4_settings>)
set_property(GLOBAL APPEND PROPERTY DS4_LAYER_LIBRARIES ds4_backend_cuda)
