//! [`Campaign`]: the rounds of the kill matrix for producers and importers.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use umf_tests::block_table::{BlockTable, PRODUCERS};
use umf_tests::{Outcome, Rng, machine};

use super::Failpoint;
use super::plan::{self, End, Role, Setup};
use super::tally::Tally;
use super::workers::{self, Worker, bound};

/// Rounds after which all processes are replaced.
const ROUNDS_PER_SETUP: u64 = 8;
/// Violations after which the campaign ends.
const MAX_VIOLATIONS: usize = 12;

pub(crate) struct Campaign {
    seed: u64,
    table: BlockTable,
    tally: Tally,
    workers: Vec<Worker>,
    next_incarnation: u64,
    /// Shortest time in which a producer of this setup did all its activities once.
    activity_time: Option<Duration>,
    can_choose_pids: bool,
}

impl Campaign {
    pub(crate) fn new(seed: u64) -> Self {
        workers::adopt_orphans();
        let can_choose_pids = machine::is_root();
        if !can_choose_pids {
            machine::skip(
                "kill_at_any_failpoint_leaks_nothing",
                "reused pids: choosing a pid needs CAP_CHECKPOINT_RESTORE",
            );
        }
        Self {
            seed,
            table: BlockTable::create(),
            tally: Tally::new(seed),
            workers: Vec::new(),
            next_incarnation: 1,
            activity_time: None,
            can_choose_pids,
        }
    }

    pub(crate) fn run(mut self, rounds: u64) -> Tally {
        println!("kill matrix: {rounds} rounds, seed {}", self.seed);
        let mut shown = Instant::now();
        let mut setup = None;
        // If `rounds` suffice to reach all failpoints, continues up to eight times as long until
        // each had a kill: processes reach fewer failpoints in a round on a busy machine.
        let is_enough = |tally: &Tally, round| {
            round >= rounds && (!plan::can_reach_all(rounds) || tally.failpoints_without_kill().is_empty())
        };
        for round in 0..8 * rounds {
            if is_enough(&self.tally, round) {
                break;
            }
            let mut rng = Rng::new(self.seed.wrapping_mul(0x0100_0000_01b3) ^ round);
            if round.is_multiple_of(ROUNDS_PER_SETUP) || setup.is_none() {
                self.stop_all();
                self.activity_time = None;
                setup = Some(Setup::new(&mut rng, &self.tally.targets(), self.can_choose_pids));
            }
            if let Some(setup) = &setup {
                self.start_missing(setup);
                self.round(round, setup, &mut rng);
            }
            self.tally.rounds += 1;
            if self.tally.violations.len() >= MAX_VIOLATIONS {
                break;
            }
            if shown.elapsed() > Duration::from_secs(5) {
                println!("  {}", self.tally);
                shown = Instant::now();
            }
        }
        self.stop_all();
        let left = workers::files_left_in_directory();
        if !left.is_empty() {
            self.tally.violation(format!("the directory of sockets still has {left:?}"));
        }
        self.tally.end();
        self.tally
    }

    /// Makes all workers exit, which must succeed.
    fn stop_all(&mut self) {
        for mut worker in std::mem::take(&mut self.workers) {
            worker.actor.send("exit");
            let outcome = worker.actor.outcome(bound());
            if outcome != Outcome::Ended || worker.actor.reap() != "code 0" {
                self.tally
                    .violation(format!("{:?} {} does not end: {outcome:?}", worker.role, worker.incarnation));
                worker.kill_if_alive();
            }
            self.record_end(&worker);
        }
    }

    /// Records that a worker is dead, and checks that it left nothing.
    fn record_end(&mut self, worker: &Worker) {
        self.table.set_dead(worker.incarnation);
        self.tally.names_left += worker.remove_names();
        if let Some(bound_socket) = worker.bound_socket() {
            self.tally
                .violation(format!("{:?} {} has ended, and {bound_socket}", worker.role, worker.incarnation));
        }
    }

    /// Starts processes until there are two producers and two importers.
    fn start_missing(&mut self, setup: &Setup) {
        for role in [Role::Producer, Role::Importer] {
            while self.workers.iter().filter(|worker| worker.role == role).count() < 2 {
                match self.start(role, setup, None) {
                    Ok(Some(worker)) => self.workers.push(worker),
                    Ok(None) => {}
                    Err(why) => {
                        self.tally.violation(why);
                        return;
                    }
                }
            }
        }
    }

    fn start(&mut self, role: Role, setup: &Setup, pid: Option<u32>) -> Result<Option<Worker>, String> {
        // Live producers must not share entries of the table.
        let taken = |incarnation: u64| {
            self.workers.iter().any(|worker| worker.incarnation % PRODUCERS == incarnation % PRODUCERS)
        };
        let incarnation = (self.next_incarnation..)
            .find(|&incarnation| !taken(incarnation))
            .unwrap_or(self.next_incarnation);
        self.next_incarnation = incarnation + 1;
        let worker = Worker::start(role, incarnation, setup, &self.table, pid)?;
        let activity_time = worker.as_ref().and_then(|worker| worker.activity_time);
        self.activity_time = self.activity_time.into_iter().chain(activity_time).min();
        Ok(worker)
    }

    /// Returns the work time of a round: `milliseconds`, or more if a producer needs longer for all
    /// its activities, as in a guest. Importers would otherwise end before they can open anything.
    fn work_time(&self, milliseconds: u64) -> u64 {
        let needed = self.activity_time.map_or(Duration::ZERO, |activity_time| activity_time * 2);
        milliseconds.max(u64::try_from(needed.as_millis()).unwrap_or(u64::MAX))
    }

    fn round(&mut self, round: u64, setup: &Setup, rng: &mut Rng) {
        let violations = self.tally.violations.len();
        let milliseconds = self.work_time(6 + rng.below(20));
        let (role, end) = plan::end(rng, setup, &self.tally.targets(), milliseconds);
        if let End::KilledAt { failpoint, .. } | End::StoppedAt { failpoint, .. } = end {
            *self.tally.planned.entry(failpoint).or_default() += 1;
        }
        let candidates: Vec<usize> =
            (0..self.workers.len()).filter(|&index| self.workers[index].role == role).collect();
        if candidates.is_empty() {
            return;
        }
        let mut victim = self.workers.swap_remove(*rng.choose(&candidates));
        // Half of the time, so that more operations overlap with the slow process.
        if rng.one_in(2) {
            self.delay_a_worker(rng);
        }
        arm_for(&mut victim, end);
        for worker in self.workers.iter_mut().chain([&mut victim]) {
            worker.work(setup, milliseconds, rng.next_u64() >> 16);
        }
        let has_ended = self.end(&mut victim, end, milliseconds);
        if has_ended {
            self.record_end(&victim);
            // Often replaces the victim while the others still work.
            if rng.one_in(2) {
                self.replace(&victim, setup, milliseconds / 2, rng);
            }
            self.check_survivors(Some(&victim));
        } else {
            self.workers.push(victim);
            self.check_survivors(None);
        }
        if self.tally.violations.len() > violations {
            println!("    in round {round}, seed {}, {role:?}, {end:?}, {setup:?}", self.seed);
        }
    }

    /// Makes a worker sleep at a random failpoint.
    fn delay_a_worker(&mut self, rng: &mut Rng) {
        let slow = rng.choose_mut(&mut self.workers);
        let most = *rng.choose(&[1, 2, 30]);
        slow.arm(
            rng.choose::<Failpoint>(plan::failpoints()),
            1 + u32::try_from(rng.below(most)).unwrap(),
            "sleep:2",
        );
    }

    /// Starts a process in place of the victim, half of the time under the same pid.
    fn replace(&mut self, victim: &Worker, setup: &Setup, milliseconds: u64, rng: &mut Rng) {
        let has_same_pid = self.can_choose_pids && rng.one_in(2);
        match self.start(victim.role, setup, has_same_pid.then_some(victim.actor.pid())) {
            Ok(Some(mut new)) => {
                self.tally.same_pid += u64::from(has_same_pid);
                new.work(setup, milliseconds, rng.next_u64() >> 16);
                self.workers.push(new);
            }
            Ok(None) => {}
            Err(why) => self.tally.violation(why),
        }
    }

    /// Kills the victim as planned. Returns `false` if it is alive, and has answered.
    fn end(&mut self, victim: &mut Worker, end: End, milliseconds: u64) -> bool {
        self.signal(victim, end, Duration::from_millis(milliseconds));
        let mut outcome = victim.actor.outcome(bound());
        if let (Outcome::Answer(Ok(_)), End::KilledAfter { .. }) = (&outcome, end) {
            // The victim answered just before the signal came.
            outcome = victim.actor.outcome(bound());
        }
        match (outcome, end) {
            (Outcome::Ended, end) => {
                // Importers need this record to check their errors, so it comes before reaping.
                self.table.set_dead(victim.incarnation);
                let how = victim.actor.reap();
                if !workers::is_kill_status(&how) {
                    self.tally
                        .violation(format!("{:?} {}, the victim: {how}", victim.role, victim.incarnation));
                } else if let End::KilledAt { failpoint, .. } = end {
                    *self.tally.kills.entry(failpoint).or_default() += 1;
                }
                true
            }
            (Outcome::Answer(Ok(text)), End::KilledAt { .. } | End::StoppedAt { .. }) => {
                self.record_answer(victim, end, &text)
            }
            (outcome, _) => {
                self.tally
                    .violation(format!("{:?} {}, the victim: {outcome:?}", victim.role, victim.incarnation));
                victim.kill_if_alive();
                true
            }
        }
    }

    /// Sends the planned signals to the victim.
    fn signal(&mut self, victim: &mut Worker, end: End, work: Duration) {
        match end {
            End::KilledAfter { microseconds } => {
                std::thread::sleep(Duration::from_micros(microseconds));
                victim.actor.signal(libc::SIGKILL);
                self.tally.at_random += 1;
            }
            End::StoppedAt { failpoint, milliseconds, continues, .. } => {
                if victim.wait_for_stop(work * 4 + Duration::from_millis(60)) {
                    *self.tally.kills.entry(failpoint).or_default() += 1;
                    self.tally.stopped += 1;
                    std::thread::sleep(Duration::from_millis(milliseconds));
                    victim.actor.signal(if continues { libc::SIGCONT } else { libc::SIGKILL });
                } else {
                    // A child may have stopped in place of the victim.
                    self.tally.not_reached += 1;
                    workers::kill_children(victim.actor.pid());
                    victim.actor.signal(libc::SIGKILL);
                }
            }
            End::KilledAt { .. } => {}
        }
    }

    /// Records the answer of a victim that has not reached its failpoint, or continued after it.
    /// Returns whether it has ended since.
    fn record_answer(&mut self, victim: &mut Worker, end: End, text: &str) -> bool {
        victim.has_answered = true;
        self.tally.answer(text);
        let child_ended = !text.ends_with("children_killed=0");
        // Threads of umf continue after the work, so that the victim may still reach the failpoint.
        match (victim.disarm(&self.table), end) {
            (Ok(at_rest), End::KilledAt { failpoint, .. }) => {
                if child_ended || at_rest.is_some() {
                    *self.tally.kills.entry(failpoint).or_default() += 1;
                } else {
                    self.tally.not_reached += 1;
                }
                at_rest.is_some()
            }
            (Ok(at_rest), _) => at_rest.is_some(),
            (Err(outcome), _) => {
                self.tally
                    .violation(format!("{:?} {}, disarmed: {outcome:?}", victim.role, victim.incarnation));
                victim.kill_if_alive();
                true
            }
        }
    }

    /// Waits until the survivors are idle, and checks that they saw no violation, hold what they
    /// held before, and that nothing of the dead process is left.
    fn check_survivors(&mut self, dead: Option<&Worker>) {
        self.wait_for_survivors();
        if let Some(report) = self.table.take_report() {
            self.tally.violation(report);
        }
        let known: BTreeSet<u32> = self.workers.iter().map(|worker| worker.actor.pid()).collect();
        for orphan in workers::reap_orphans(&known) {
            self.tally.violation(format!("process {orphan}, forked by one that was killed, does not end"));
        }
        // No process has anything open now.
        for worker in self.workers.iter_mut().filter(|worker| worker.role == Role::Producer) {
            if let Some(holds) = worker.remaining_deferred_frees() {
                self.tally.violation(format!("{:?} {}: {holds}", worker.role, worker.incarnation));
            }
        }
        for worker in self.workers.iter().chain(dead) {
            if let Some(left) = worker.remaining_dma_bufs() {
                self.tally.violation(format!("{:?} {}: {left}", worker.role, worker.incarnation));
            }
        }
        self.end_leaking_workers();
    }

    /// Waits for the answers of the survivors, and ends those that failed or reached a failpoint.
    fn wait_for_survivors(&mut self) {
        let mut index = 0;
        while index < self.workers.len() {
            let worker = &mut self.workers[index];
            let answered = std::mem::take(&mut worker.has_answered);
            let outcome =
                if answered { Outcome::Answer(Ok(String::new())) } else { worker.actor.outcome(bound()) };
            let ended = match outcome {
                Outcome::Answer(Ok(text)) => {
                    self.tally.answer(&text);
                    worker.disarm(&self.table)
                }
                other => Err(other),
            };
            if let Ok(None) = ended {
                index += 1;
                continue;
            }
            let mut worker = self.workers.swap_remove(index);
            match ended {
                Ok(Some(failpoint)) => *self.tally.kills.entry(failpoint).or_default() += 1,
                wrong => self.tally.violation(format!("{:?} {}: {wrong:?}", worker.role, worker.incarnation)),
            }
            worker.kill_if_alive();
            self.record_end(&worker);
        }
    }

    /// Reports leaking workers and ends them, so that each is reported once.
    fn end_leaking_workers(&mut self) {
        let mut leaking = Vec::new();
        for (index, worker) in self.workers.iter_mut().enumerate() {
            if let Some(leak) = worker.find_leak() {
                self.tally.violation(format!("{:?} {}: {leak}", worker.role, worker.incarnation));
                leaking.push(index);
            }
        }
        for index in leaking.into_iter().rev() {
            let mut worker = self.workers.swap_remove(index);
            worker.kill_if_alive();
            self.record_end(&worker);
        }
    }
}

/// Arms the failpoint of the victim's planned end.
fn arm_for(victim: &mut Worker, end: End) {
    match end {
        End::KilledAt { failpoint, nth } => {
            if let Some(before) = plan::delayed_before(failpoint) {
                victim.arm(before, 0, "sleep:1");
            }
            victim.arm(failpoint, nth, "kill");
        }
        End::StoppedAt { failpoint, nth, .. } => victim.arm(failpoint, nth, "stop"),
        End::KilledAfter { .. } => {}
    }
}
