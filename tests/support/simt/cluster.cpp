// Clusters: blocks along z that run together, their barrier, and stores into each other's shared
// memory. A block's shared memory may be stored to between a wait that its arrival let others pass
// and its last thread's return, which must lie behind the store.
#include <fmt/format.h>

#include <algorithm>

#include "tests/support/simt/lanes.h"

namespace atlas::simt {

void Cluster::begin(std::span<Block* const> members) {
  blocks.assign(members.begin(), members.end());
  std::sort(blocks.begin(), blocks.end(),
            [](const Block* a, const Block* b) { return a->linear < b->linear; });
  threads = 0;
  for (Block* block : blocks) {
    block->cluster = this;
    threads += block->threads;
  }
  arrived = gone = left = phase = 0;
  gathering.clear();
  past.reset();
}

const ClusterPast* newer(const ClusterPast* a, const ClusterPast* b) {
  return a == nullptr || (b != nullptr && b->phase > a->phase) ? b : a;
}

void Run::arrive_at_cluster(Lane& of, bool releases) {
  Cluster& cluster = *of.home->cluster;
  if (of.cluster_arrivals != of.cluster_waits) {
    return fault(FaultKind::kCluster, of, of.site,
                 "arrives at the cluster's barrier again before it has waited there");
  }
  ++of.cluster_arrivals;
  if (releases) {
    enter_epoch(of);
    // What it has seen of the cluster is in `past` of all.
    add_own(of, cluster.gathering);
    ++of.clock;
  }
  ++cluster.arrived;
  open_cluster(cluster);
}

void Run::open_cluster(Cluster& cluster) {
  if (cluster.arrived == 0 || cluster.arrived + cluster.gone != cluster.threads) return;
  auto past = std::make_shared<ClusterPast>();
  past->phase = ++cluster.phase;
  if (cluster.past != nullptr) past->known.join(cluster.past->known);
  past->known.join(cluster.gathering);
  cluster.gathering.clear();
  cluster.past = std::move(past);
  cluster.arrived = 0;
  cluster.gone = cluster.left;
  advanced_ = true;
  for (Block* block : cluster.blocks) {
    for (const auto& one : block->lanes) {
      if (one->state != LaneState::kAtCluster) continue;
      one->state = LaneState::kReady;
      one->warp->ready |= 1u << one->lane;
    }
  }
}

void Run::leave_cluster(Lane& of) {
  Cluster& cluster = *of.home->cluster;
  ++cluster.left;
  // Who has arrived in this phase is counted already.
  if (of.cluster_arrivals == cluster.phase) ++cluster.gone;
  open_cluster(cluster);
}

void Run::cluster_wait(Site site) {
  warp_call(WarpCall::kClusterWait, 0xffffffffu, site);
  Lane& self = *lane;
  Cluster& cluster = *self.home->cluster;
  if (self.cluster_arrivals == self.cluster_waits) {
    return fault(FaultKind::kCluster, self, site,
                 "waits at the cluster's barrier without having arrived there");
  }
  if (cluster.phase < self.cluster_arrivals) {
    self.site = site;
    self.state = LaneState::kAtCluster;
    self.warp->ready &= ~(1u << self.lane);
    leave();
  }
  ++self.cluster_waits;
  self.past = cluster.past;
}

void Run::cluster_write(void* mine, uint32_t z, const void* from, uint32_t bytes, Site site) {
  Block& home = *lane->home;
  if (z >= home.cluster->blocks.size()) {
    return fault(
        FaultKind::kCluster, *lane, site,
        fmt::format("stores to block {} of a cluster that has {}", z, home.cluster->blocks.size()));
  }
  Block& target = *home.cluster->blocks[z];
  Place place;
  if (!resolve(mine, bytes, true, site, place)) return;
  if (!place.region->shared) {
    return fault(
        FaultKind::kNotDeviceMemory, *lane, site,
        fmt::format("stores to another block's {}, which is no shared memory", place.region->name));
  }
  place.region = &target.shared;
  if (&target != &home) {
    if (lane->cluster_waits == 0) {
      fault(FaultKind::kCluster, *lane, site,
            fmt::format("stores to the shared memory of block {} of its cluster, which no wait has "
                        "shown to have begun",
                        z));
    }
    if (target.returned == target.threads) {
      return fault(
          FaultKind::kCluster, *lane, site,
          fmt::format("stores to the shared memory of block {} of its cluster, which has left", z));
    }
    target.guests[uint64_t{home.linear} << 32 | lane->thread] = {stamp(false), site, lane};
  }
  write_at(place, from, bytes, site);
}

void Run::check_guests(Block& block) {
  const ClusterPast* past = block.past.get();
  for (const auto& one : block.lanes) past = newer(past, one->past.get());
  for (const auto& [who, guest] : block.guests) {
    if (block.known.covers(guest.stamp)) continue;
    if (past != nullptr && past->known.covers(guest.stamp)) continue;
    fault(
        FaultKind::kCluster, *guest.lane, guest.site,
        fmt::format("stores to the shared memory of block {} of its cluster, which leaves without "
                    "having waited for that",
                    block.lanes[0]->block[2]));
    return;
  }
}

}  // namespace atlas::simt
