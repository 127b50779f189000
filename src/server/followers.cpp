// The part of the scheduler that keeps requests which come together from computing the same beginning each:
// agents start several others at once, with the same instructions and tools.
#include <algorithm>

#include "server/scheduler.hpp"

namespace ds4::server {
namespace {

// Less is computed sooner than waited for.
constexpr size_t least_shared_tokens = 512;

size_t common_tokens(const Prompt& a, const Prompt& b) {
  const auto differ = std::mismatch(a.tokens.begin(), a.tokens.end(), b.tokens.begin(), b.tokens.end());
  return static_cast<size_t>(differ.first - a.tokens.begin());
}

}  // namespace

// Leaders were there before, so nobody waits in a circle.
bool Scheduler::follow(Job& job) {
  const size_t at_hand = pool_.shared_tokens(job.prompt);
  Job* leader = nullptr;
  for (const auto& other : jobs_) {
    if (other.get() == &job || other->prefilled) continue;
    const size_t shared = common_tokens(other->prompt, job.prompt);
    const size_t best = job.following ? job.following->tokens : at_hand + least_shared_tokens - 1;
    // Of two that share as much, the one that computes, not the one that waits for it.
    const bool sooner = leader != nullptr && shared == best && leader->following && !other->following;
    if (shared <= best && !sooner) continue;
    job.following = Following{other->id, shared};
    leader = other.get();
  }
  if (leader != nullptr && !leader->borders.empty()) stop_for_followers(*leader);
  return leader != nullptr;
}

bool Scheduler::leads(const Following& following) const {
  const auto leader =
      std::find_if(jobs_.begin(), jobs_.end(), [&](const auto& job) { return job->id == following.leader; });
  if (leader == jobs_.end() || (*leader)->prefilled) return false;
  const auto& resident = (*leader)->lease.resident;
  return resident == nullptr || resident->session().position() < following.tokens;
}

bool Scheduler::waits_for(const Job& job, uint64_t leader) const {
  if (!job.following) return false;
  if (job.following->leader == leader) return true;
  const auto next = std::find_if(jobs_.begin(), jobs_.end(),
                                 [&](const auto& other) { return other->id == job.following->leader; });
  return next != jobs_.end() && waits_for(**next, leader);
}

void Scheduler::start_followers() {
  for (auto next = jobs_.begin(); next != jobs_.end();) {
    Job& job = **next++;
    if (!job.following || leads(*job.following)) continue;
    job.following.reset();
    job.taken = Clock::now();
    start(job);
  }
}

void Scheduler::stop_for_followers(Job& leader) {
  for (const auto& job : jobs_) {
    if (!job->following || job->following->leader != leader.id) continue;
    const size_t total = std::min(leader.lease.tokens.size(), job->prompt.tokens.size());
    const size_t stop = reachable_stop(job->following->tokens, total);
    for (std::vector<size_t>* list : {&leader.borders, &leader.stops}) {
      const auto place = std::lower_bound(list->begin(), list->end(), stop);
      if (place == list->end() || *place != stop) list->insert(place, stop);
    }
  }
}

void Scheduler::report_progress(const Job& job, size_t position) {
  GenerationEvent progress;
  progress.kind = GenerationEvent::Kind::progress;
  progress.done = position;
  progress.total = job.lease.tokens.size();
  job.sink->on_event(progress);
  for (const auto& other : jobs_) {
    if (!waits_for(*other, job.id)) continue;
    progress.done = std::min(position, other->following->tokens);
    progress.total = other->prompt.tokens.size();
    other->sink->on_event(progress);
  }
}

}  // namespace ds4::server
