// The measured rate of the device's memory is one that the device can have.
#include "backend/cuda/device/read_bandwidth.hpp"

#include "device_copy.hpp"

namespace ds4::cuda {
namespace {

class ReadBandwidth : public DeviceTest {};

TEST_F(ReadBandwidth, IsBelowWhatTheMemoryBusCanDo) {
  int clock_khz = 0, bus_bits = 0;
  require(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrMemoryClockRate, 0));
  require(cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, 0));
  const double peak = 2.0 * clock_khz * 1e3 * bus_bits / 8;  // two transfers a cycle
  const double rate = measure_read_bandwidth(nullptr);
  std::cout << rate * 1e-9 << " GB/s of " << peak * 1e-9 << " GB/s\n";
  EXPECT_LT(rate, peak);
  EXPECT_GT(rate, 0.6 * peak);
}

}  // namespace
}  // namespace ds4::cuda
