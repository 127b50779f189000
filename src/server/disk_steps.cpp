// The part of the scheduler that deals with conversations on disk.
#include <algorithm>
#include <chrono>
#include <utility>

#include "server/scheduler.hpp"

namespace ds4::server {
namespace {

// A prompt is evaluated without the disk if that has not answered by then.
constexpr std::chrono::seconds restore_patience{60};

}  // namespace

bool Scheduler::work_waits() {
  return stopping_ || !queue_.empty() || std::any_of(jobs_.begin(), jobs_.end(), [this](const auto& job) {
           if (job->following) return !leads(*job->following);
           return job->look == nullptr || job->look->done();
         });
}

void Scheduler::take_restored() {
  for (const auto& job : jobs_) {
    if (job->look == nullptr) continue;
    const bool late = Clock::now() - job->taken > restore_patience;
    if (!job->look->done() && !late) continue;
    const auto look = std::exchange(job->look, nullptr);
    if (!look->done()) {  // a disk that hangs: without it, then
      job->disk = DiskResult::failed;
    } else if (look->no_memory && !std::exchange(job->looked_again, true) && free_memory(*job)) {
      look_on_disk(*job);
    } else {
      job->disk = look->result;
      job->disk_seconds = look->seconds;
      if (look->session) {
        job->lease.resident->replace(std::move(*look->session));
        job->lease.tokens = std::move(look->tokens);
        job->lease.by_text = job->lease.by_text || look->by_text;
        job->lease.reusable = job->session().common_prefix(job->lease.tokens);
        pool_.trim();
      }
    }
    if (job->look == nullptr) begin_prompt(*job);
  }
}

void Scheduler::look_on_disk(Job& job) {
  // What goes on from all of a conversation in memory is rarely longer on disk.
  if (options_.disk == nullptr || job.lease.miss == Miss::none) return;
  const size_t in_memory = job.session().nearest_reachable(job.lease.reusable);
  job.look = options_.disk->look(job.prompt, job.lease.tokens, in_memory, options_.pool.context);
}

// First that of states which wait to be written: they may be all that is left of sessions given up.
bool Scheduler::free_memory(const Job& job) {
  if (options_.disk != nullptr && options_.disk->give_up_waiting()) return true;
  return pool_.give_up_one(job.lease.tokens.size(), job.request.side);
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
  ResidentSession& resident = *job.lease.resident;
  resident.dead_end = job.prefilled && job.prompt.forgets_reasoning;
  if (resident.dead_end) return;
  options_.disk->save(resident, {.reason = store::SaveReason::turn});
}

bool Scheduler::save_next() {
  if (options_.disk == nullptr) return false;
  const auto resident = pool_.take_idle();
  if (resident == nullptr) return false;
  if (!resident->side && !resident->dead_end) {
    options_.disk->save(*resident, {.reason = store::SaveReason::shutdown, .forced = true});
  }
  return true;
}

}  // namespace ds4::server
