#include "axis.hpp"

#include <fmt/format.h>

#include <cmath>
#include <span>

namespace ds4::plot {
namespace {

double round_up(double value, std::span<const double> mantissas) {
  const double power = std::pow(10.0, std::floor(std::log10(value)));
  for (const double mantissa : mantissas) {
    if (value <= mantissa * power * (1 + 1e-12)) return mantissa * power;
  }
  return 10 * power;
}

}  // namespace

double nice_ceil(double value) {
  constexpr double mantissas[] = {1, 2, 2.5, 3, 4, 5, 10};
  return value > 0 ? round_up(value, mantissas) : 1;
}

double nice_step(double span, int target) {
  constexpr double mantissas[] = {1, 2, 2.5, 5, 10};
  return round_up(span / target, mantissas);
}

std::vector<double> ticks(double maximum, double step) {
  std::vector<double> values;
  for (int i = 0; i * step <= maximum + 0.001 * step; ++i) {
    values.push_back(std::round(i * step * 1e10) / 1e10);
  }
  return values;
}

std::string tick_text(double value) {
  return std::abs(value) >= 1000 ? fmt::format("{:g}k", value / 1000) : fmt::format("{:g}", value);
}

}  // namespace ds4::plot
