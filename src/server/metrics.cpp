#include "server/metrics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace ds4::server {

void Histogram::observe(double value) {
  const auto bound = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  counts_[static_cast<size_t>(bound - bounds_.begin())].add();
  sum_.add(value);
}

Metrics::Family& Metrics::family(std::string_view name, std::string_view help, std::string_view type) {
  const auto known = std::find_if(families_.begin(), families_.end(),
                                  [&](const Family& candidate) { return candidate.name == name; });
  if (known != families_.end()) return *known;
  Family& added = families_.emplace_back();
  added.name = name;
  added.help = help;
  added.type = type;
  return added;
}

Metric& Metrics::sample(std::string_view name, std::string_view help, std::string_view type,
                        std::string_view labels) {
  const std::lock_guard lock(mutex_);
  Family& owner = family(name, help, type);
  for (Sample& known : owner.samples) {
    if (known.labels == labels) return known.metric;
  }
  Sample& added = owner.samples.emplace_back();
  added.labels = labels;
  return added.metric;
}

Metric& Metrics::counter(std::string_view name, std::string_view help, std::string_view labels) {
  return sample(name, help, "counter", labels);
}

Metric& Metrics::gauge(std::string_view name, std::string_view help, std::string_view labels) {
  return sample(name, help, "gauge", labels);
}

void Metrics::gauge(std::string_view name, std::string_view help, std::function<double()> read) {
  const std::lock_guard lock(mutex_);
  family(name, help, "gauge").samples.emplace_back().read = std::move(read);
}

Histogram& Metrics::histogram(std::string_view name, std::string_view help, std::vector<double> bounds) {
  const std::lock_guard lock(mutex_);
  Family& owner = family(name, help, "histogram");
  if (!owner.histogram) owner.histogram = std::make_unique<Histogram>(std::move(bounds));
  return *owner.histogram;
}

std::string Metrics::render() const {
  // Reading may take a while, and others count meanwhile; samples stay where they are.
  std::vector<const Sample*> read;
  {
    const std::lock_guard lock(mutex_);
    for (const Family& family : families_) {
      for (const Sample& sample : family.samples) {
        if (sample.read) read.push_back(&sample);
      }
    }
  }
  std::map<const Sample*, double> values;
  for (const Sample* sample : read) values[sample] = sample->read();

  const std::lock_guard lock(mutex_);
  std::string text;
  for (const Family& family : families_) {
    text += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", family.name, family.help, family.type);
    for (const Sample& sample : family.samples) {
      const std::string labels = sample.labels.empty() ? "" : "{" + sample.labels + "}";
      const auto value = values.find(&sample);
      if (sample.read && value == values.end()) continue;  // came meanwhile
      text +=
          fmt::format("{}{} {}\n", family.name, labels, sample.read ? value->second : sample.metric.value());
    }
    if (!family.histogram) continue;
    const Histogram& histogram = *family.histogram;
    double below = 0;
    for (size_t i = 0; i < histogram.bounds_.size(); ++i) {
      below += histogram.counts_[i].value();
      text += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", family.name, histogram.bounds_[i], below);
    }
    below += histogram.counts_.back().value();
    text += fmt::format("{0}_bucket{{le=\"+Inf\"}} {1}\n{0}_sum {2}\n{0}_count {1}\n", family.name, below,
                        histogram.sum_.value());
  }
  return text;
}

}  // namespace ds4::server
