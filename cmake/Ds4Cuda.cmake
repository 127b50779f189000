# The CUDA backend, compiled when DS4_CUDA is on. Needs nvcc, not a GPU.
file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS
  "${PROJECT_SOURCE_DIR}/src/backend/cuda/*.cu" "${PROJECT_SOURCE_DIR}/src/backend/cuda/*.cpp")
add_library(ds4_backend_cuda STATIC ${cuda_sources})
target_link_libraries(ds4_backend_cuda PUBLIC ds4_model ds4_backend_cpu CUDA::cudart_static
  PRIVATE $<BUILD_INTERFACE:ds4_settings>)
set_property(GLOBAL APPEND PROPERTY DS4_LAYER_LIBRARIES ds4_backend_cuda)
