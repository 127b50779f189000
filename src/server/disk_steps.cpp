// The part of the scheduler that deals with conversations on disk.
#include <algorithm>
#include <utility>

#include "server/scheduler.hpp"

namespace ds4::server {

bool Scheduler::work_waits() {
  return stopping_ || !queue_.empty() || std::any_of(jobs_.begin(), jobs_.end(), [](const auto& job) {
           return job->look == nullptr || job->look->done();
         });
}

void Scheduler::take_restored() {
  for (const auto& job : jobs_) {
    if (job->look == nullptr || !job->look->done()) continue;
    const auto look = std::exchange(job->look, nullptr);
    job->disk = look->result;
    job->disk_seconds = look->seconds;
    if (look->session) {
      job->lease.resident->replace(std::move(*look->session));
      job->lease.tokens = std::move(look->tokens);
      job->lease.by_text = job->lease.by_text || look->by_text;
      job->lease.reusable = job->session().common_prefix(job->lease.tokens);
    }
    begin_prompt(*job);
  }
}

void Scheduler::save_prompt(const Job& job) {
  const ResidentSession& resident = *job.lease.resident;
  for (const SavePoint& point : job.save_points) {
    if (point.position == resident.session().position()) options_.disk->save(resident, point.how);
  }
}

// Of the first answer: the others are forgotten at the end.
void Scheduler::save_growth(const Row& row) {
  Job& job = *row.job;
  if (options_.disk == nullptr || job.request.side || row.choice != &job.choices.front()) return;
  const size_t step = store::continued_step(options_.disk->policy());
  const size_t position = job.session().position();
  if (step == 0 || position / step == std::exchange(job.saved_steps, position / step)) return;
  options_.disk->save(*job.lease.resident, {.reason = store::SaveReason::continued});
}

// A reply that broke off, too: the client may go on from there.
void Scheduler::save_turn(const Job& job) {
  if (options_.disk == nullptr || job.request.side || job.lease.resident == nullptr) return;
  options_.disk->save(*job.lease.resident, {.reason = store::SaveReason::turn});
}

void Scheduler::save_all() {
  if (options_.disk == nullptr) return;
  for (const auto& resident : pool_.sessions()) {
    if (resident->side) continue;
    options_.disk->save(*resident, {.reason = store::SaveReason::shutdown, .forced = true});
  }
}

}  // namespace ds4::server
