// Round numbers for axes.
#pragma once

#include <string>
#include <vector>

namespace ds4::plot {

/// The end of an axis that shows `value`: its mantissa rounded up to 1, 2, 2.5, 3, 4, 5 or 10. 1 for values
/// that are not positive.
double nice_ceil(double value);
/// The distance of about `target` ticks over `span` > 0: a mantissa of 1, 2, 2.5, 5 or 10.
double nice_step(double span, int target);
/// 0, step, 2 step, ... up to `maximum`, which is included in spite of rounding.
std::vector<double> ticks(double maximum, double step);
/// "512", "2.5", "32.768k"
std::string tick_text(double value);

}  // namespace ds4::plot
