//! What a demo is to do, and whether this machine has room for it.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use umf::config::ByteSize;

use crate::info::{bytes, kernel_files};

/// What each rank needs, whatever it does.
const RANK_BYTES: u64 = 8 << 20;
/// What a handle costs: bytes in its reader, text on its way, ledger and cache entries.
const HANDLE_BYTES: u64 = 1 << 10;
/// What a block costs in its owner and in the launcher beside its memory.
const BLOCK_BYTES: u64 = 2 << 10;

/// A demo, as every process in it knows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    /// The provider set that the memory comes from; shared memory of the host where none is named.
    pub provider: Option<String>,
    pub ranks: u32,
    /// Blocks per rank.
    pub blocks: u32,
    /// Bytes per block, at least 1.
    pub size: usize,
    /// Tells this run from others.
    pub run: u64,
    /// How long a rank may measure, in milliseconds.
    pub measure_ms: u64,
    /// Who started the ranks.
    pub launcher: u32,
}

/// One of the rounds in which readers answer: those whose number is this many above the owner's, in a circle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Round {
    pub first: u32,
    pub last: u32,
}

impl Plan {
    /// A pool over the provider.
    ///
    /// # Errors
    /// It is not there, or cannot be used.
    pub(super) fn pool(&self) -> umf::Result<umf::Pool> {
        match &self.provider {
            Some(provider) => umf::Pool::over(provider),
            None => umf::Pool::shared(),
        }
    }

    /// Bytes of one rank's blocks.
    pub(super) fn rank_bytes(&self) -> u64 {
        u64::from(self.blocks).saturating_mul(self.size as u64)
    }

    /// Handles that all ranks open, together.
    pub(super) fn opens(&self) -> u64 {
        let ranks = u64::from(self.ranks);
        (ranks * (ranks - 1)).saturating_mul(self.blocks.into())
    }

    /// Bytes of memory that the demo needs at most.
    fn needs(&self) -> u64 {
        let blocks = u64::from(self.ranks) * u64::from(self.blocks);
        // Slabs and large blocks are rounded up by at most an eighth.
        let memory = blocks.saturating_mul((self.size as u64).saturating_add(self.size as u64 / 8));
        (u64::from(self.ranks) * RANK_BYTES)
            .saturating_add(memory)
            .saturating_add(blocks.saturating_mul(BLOCK_BYTES))
            .saturating_add(self.opens().saturating_mul(HANDLE_BYTES))
    }

    /// Whether there is memory for it.
    ///
    /// # Errors
    /// How much there is and how much it needs, in words.
    pub(super) fn fits(&self) -> Result<(), String> {
        let (needs, free) = (self.needs(), free_memory());
        if needs <= free {
            return Ok(());
        }
        Err(format!(
            "{} ranks with {} blocks of {} need about {}, and {} of memory are free: ask for less with --ranks, \
             --blocks or --size",
            self.ranks,
            self.blocks,
            ByteSize::new(self.size as u64),
            bytes::human(needs),
            bytes::human(free),
        ))
    }

    /// Bytes that each reader answers, or 0 if a block has no room for all of them at once: then they answer in
    /// turn, over the whole block.
    fn part(&self) -> usize {
        let readers = self.ranks as usize - 1;
        (self.size / 2).checked_div(readers).unwrap_or(0)
    }

    /// The rounds in which readers answer.
    pub(super) fn rounds(&self) -> Vec<Round> {
        match (self.ranks - 1, self.part()) {
            (0, _) => Vec::new(),
            (readers, 0) => (1..=readers).map(|distance| Round { first: distance, last: distance }).collect(),
            (readers, _) => vec![Round { first: 1, last: readers }],
        }
    }

    /// Where the reader that is `distance` above the owner answers.
    pub(super) fn answer_place(&self, distance: u32) -> Range<usize> {
        match self.part() {
            0 => 0..self.size,
            part => {
                let end = self.size - part * (distance as usize - 1);
                end - part..end
            }
        }
    }

    /// How far `reader` is above `owner`, in a circle.
    pub(super) fn distance(&self, owner: u32, reader: u32) -> u32 {
        (reader + self.ranks - owner) % self.ranks
    }
}

impl Round {
    /// Whether the reader at this distance answers.
    pub(super) fn has(self, distance: u32) -> bool {
        (self.first..=self.last).contains(&distance)
    }
}

/// Bytes that can be had without pushing anything out: what the machine has, and what the control group leaves.
fn free_memory() -> u64 {
    let machine = kernel_files::text("/proc/meminfo").ok().and_then(|text| {
        let available = kernel_files::field(&text, "MemAvailable")?;
        kernel_files::kilobytes(available)
    });
    let group = umf_memory::group::tightest().ok().flatten();
    let group = group.map_or(u64::MAX, |(group, limit)| limit.saturating_sub(group.used().unwrap_or(0)));
    // Not the last byte.
    machine.unwrap_or(u64::MAX).min(group) / 10 * 9
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(ranks: u32, size: usize) -> Plan {
        Plan { provider: None, ranks, blocks: 3, size, run: 1, measure_ms: 1, launcher: 1 }
    }

    #[test]
    fn answers_do_not_overlap_within_a_round() {
        for ranks in [1, 2, 3, 4, 17] {
            for size in [1, 2, 5, 6, 31, 32, 33, 4096] {
                let plan = plan(ranks, size);
                let mut answered = Vec::new();
                for round in plan.rounds() {
                    let mut taken = vec![false; size];
                    for distance in (1..ranks).filter(|distance| round.has(*distance)) {
                        answered.push(distance);
                        let place = plan.answer_place(distance);
                        assert!(!place.is_empty());
                        taken[place].iter_mut().for_each(|byte| assert!(!std::mem::replace(byte, true)));
                    }
                }
                assert_eq!(answered, (1..ranks).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn every_reader_has_its_own_distance() {
        let plan = plan(4, 64);
        let distances: Vec<_> = (0..4).map(|reader| plan.distance(2, reader)).collect();
        assert_eq!(distances, [2, 3, 0, 1]);
    }

    #[test]
    fn absurd_plans_do_not_overflow() {
        let plan = Plan { blocks: u32::MAX, ..plan(1024, usize::MAX) };
        assert!(plan.fits().unwrap_err().contains("--size"));
    }
}
