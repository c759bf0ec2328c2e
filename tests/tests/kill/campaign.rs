//! [`Campaign`]: round after round.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use umf_tests::board::{Board, PLACES};
use umf_tests::{Outcome, Sequence, machine};

use super::Failpoint;
use super::crew::{self, Member, bound};
use super::plan::{self, End, Role, Setup};
use super::tally::Tally;

/// Rounds in which processes live on, unless they are killed.
const EPOCH: u64 = 8;
/// Enough to know that something is wrong.
const ENOUGH: usize = 12;

pub(crate) struct Campaign {
    seed: u64,
    board: Board,
    tally: Tally,
    members: Vec<Member>,
    next_who: u64,
    /// The shortest time in which a producer of this setup did all that it does.
    tour: Option<Duration>,
    can_choose_pids: bool,
}

impl Campaign {
    pub(crate) fn new(seed: u64) -> Self {
        crew::adopt_orphans();
        let can_choose_pids = machine::is_root();
        if !can_choose_pids {
            machine::skip(
                "whoever_is_killed_and_whenever",
                "pids used again: choosing one needs CAP_CHECKPOINT_RESTORE",
            );
        }
        Self {
            seed,
            board: Board::create(),
            tally: Tally::new(seed),
            members: Vec::new(),
            next_who: 1,
            tour: None,
            can_choose_pids,
        }
    }

    pub(crate) fn run(mut self, rounds: u64) -> Tally {
        println!("kill matrix: {rounds} rounds, seed {}", self.seed);
        let mut shown = Instant::now();
        let mut setup = None;
        // As many. Where these can get to all steps: up to eight times as many until all had their kill, as a
        // busy machine gets to fewer in a round.
        let is_enough = |tally: &Tally, round| {
            round >= rounds && (!plan::can_get_to_all(rounds) || tally.steps_without_kill().is_empty())
        };
        for round in 0..8 * rounds {
            if is_enough(&self.tally, round) {
                break;
            }
            let mut sequence = Sequence::new(self.seed.wrapping_mul(0x0100_0000_01b3) ^ round);
            if round.is_multiple_of(EPOCH) || setup.is_none() {
                self.dismiss();
                self.tour = None;
                setup = Some(Setup::new(&mut sequence, &self.tally.todo(), self.can_choose_pids));
            }
            if let Some(setup) = &setup {
                self.recruit(setup);
                self.round(round, setup, &mut sequence);
            }
            self.tally.rounds += 1;
            if self.tally.violations.len() >= ENOUGH {
                break;
            }
            if shown.elapsed() > Duration::from_secs(5) {
                println!("  {}", self.tally);
                shown = Instant::now();
            }
        }
        self.dismiss();
        self.tally.end();
        self.tally
    }

    /// All end by themselves, and in peace.
    fn dismiss(&mut self) {
        for mut member in std::mem::take(&mut self.members) {
            member.actor.send("exit");
            let outcome = member.actor.outcome(bound());
            if outcome != Outcome::Ended || member.actor.reap() != "code 0" {
                self.tally.violation(format!("{:?} {} does not end: {outcome:?}", member.role, member.who));
                member.end_it();
            }
            self.bury(&member);
        }
    }

    /// A member that has ended.
    fn bury(&mut self, member: &Member) {
        self.board.set_dead(member.who);
        self.tally.names_left += member.take_names_away();
        if let Some(remains) = member.remains() {
            self.tally.violation(format!("{:?} {} has ended, and {remains}", member.role, member.who));
        }
    }

    /// Two of each are there.
    fn recruit(&mut self, setup: &Setup) {
        for role in [Role::Producer, Role::Importer] {
            while self.members.iter().filter(|member| member.role == role).count() < 2 {
                match self.start(role, setup, None) {
                    Ok(Some(member)) => self.members.push(member),
                    Ok(None) => {}
                    Err(why) => {
                        self.tally.violation(why);
                        return;
                    }
                }
            }
        }
    }

    fn start(&mut self, role: Role, setup: &Setup, pid: Option<u32>) -> Result<Option<Member>, String> {
        // A place on the board is one producer's alone, as long as that lives.
        let taken = |who: u64| self.members.iter().any(|member| member.who % PLACES == who % PLACES);
        let who = (self.next_who..).find(|&who| !taken(who)).unwrap_or(self.next_who);
        self.next_who = who + 1;
        let member = Member::start(role, who, setup, &self.board, pid)?;
        let tour = member.as_ref().and_then(|member| member.tour);
        self.tour = self.tour.into_iter().chain(tour).min();
        Ok(member)
    }

    /// How long members work in a round. Where a producer takes longer than that to make what it needs and do all of it once (in a
    /// guest), it is for longer: importers would be done before there is anything to open.
    fn long_enough(&self, milliseconds: u64) -> u64 {
        let tours = self.tour.map_or(Duration::ZERO, |tour| tour * 2);
        milliseconds.max(u64::try_from(tours.as_millis()).unwrap_or(u64::MAX))
    }

    fn round(&mut self, round: u64, setup: &Setup, sequence: &mut Sequence) {
        let violations = self.tally.violations.len();
        let milliseconds = self.long_enough(6 + sequence.below(20));
        let (role, end) = plan::end(sequence, setup, &self.tally.todo(), milliseconds);
        if let End::AtStep { step, .. } | End::StopsAtStep { step, .. } = end {
            *self.tally.planned.entry(step).or_default() += 1;
        }
        let candidates: Vec<usize> =
            (0..self.members.len()).filter(|&index| self.members[index].role == role).collect();
        if candidates.is_empty() {
            return;
        }
        let mut victim = self.members.swap_remove(*sequence.of(&candidates));
        // A step of somebody else takes longer, so that others get in between.
        if sequence.one_in(2) {
            let slow = sequence.of_mut(&mut self.members);
            let most = *sequence.of(&[1, 2, 30]);
            slow.arm(
                sequence.of::<Failpoint>(plan::steps()),
                1 + u32::try_from(sequence.below(most)).unwrap(),
                "sleep:2",
            );
        }
        match end {
            End::AtStep { step, nth } => {
                if let Some(before) = plan::slow_before(step) {
                    victim.arm(before, 0, "sleep:1");
                }
                victim.arm(step, nth, "kill");
            }
            End::StopsAtStep { step, nth, .. } => victim.arm(step, nth, "stop"),
            End::AtRandom { .. } => {}
        }
        for member in self.members.iter_mut().chain([&mut victim]) {
            member.work(setup, milliseconds, sequence.number() >> 16);
        }
        let ended = self.end(&mut victim, end, milliseconds);
        let mut replaced = None;
        if ended {
            let pid = victim.actor.pid();
            self.bury(&victim);
            // While the others still work: often under the pid of the dead one.
            if sequence.one_in(2) {
                let same = self.can_choose_pids && sequence.one_in(2);
                match self.start(victim.role, setup, same.then_some(pid)) {
                    Ok(Some(mut new)) => {
                        self.tally.same_pid += u64::from(same);
                        new.work(setup, milliseconds / 2, sequence.number() >> 16);
                        replaced = Some(new);
                    }
                    Ok(None) => {}
                    Err(why) => self.tally.violation(why),
                }
            }
        }
        self.members.extend(replaced);
        if ended {
            self.settle(Some(&victim));
        } else {
            self.members.push(victim);
            self.settle(None);
        }
        if self.tally.violations.len() > violations {
            println!("    in round {round}, seed {}, {role:?}, {end:?}, {setup:?}", self.seed);
        }
    }

    /// Waits for the victim's end. `false` if it lives on, and has answered.
    fn end(&mut self, victim: &mut Member, end: End, milliseconds: u64) -> bool {
        let work = Duration::from_millis(milliseconds);
        match end {
            End::AtRandom { microseconds } => {
                std::thread::sleep(Duration::from_micros(microseconds));
                victim.actor.signal(libc::SIGKILL);
                self.tally.at_random += 1;
            }
            End::StopsAtStep { step, milliseconds, goes_on, .. } => {
                if victim.has_stopped(work * 4 + Duration::from_millis(60)) {
                    *self.tally.by_step.entry(step).or_default() += 1;
                    self.tally.stopped += 1;
                    std::thread::sleep(Duration::from_millis(milliseconds));
                    victim.actor.signal(if goes_on { libc::SIGCONT } else { libc::SIGKILL });
                } else {
                    // A child of it may have stopped: it goes with its parent.
                    self.tally.not_reached += 1;
                    crew::kill_children(victim.actor.pid());
                    victim.actor.signal(libc::SIGKILL);
                }
            }
            End::AtStep { .. } => {}
        }
        let mut outcome = victim.actor.outcome(bound());
        if let (Outcome::Answer(Ok(_)), End::AtRandom { .. }) = (&outcome, end) {
            // It was done a moment before.
            outcome = victim.actor.outcome(bound());
        }
        match (outcome, end) {
            (Outcome::Ended, end) => {
                // Before it is reaped: others are to judge by that.
                self.board.set_dead(victim.who);
                let how = victim.actor.reap();
                if !crew::was_killed(&how) {
                    self.tally.violation(format!("{:?} {}, the victim: {how}", victim.role, victim.who));
                } else if let End::AtStep { step, .. } = end {
                    *self.tally.by_step.entry(step).or_default() += 1;
                }
                true
            }
            (Outcome::Answer(Ok(text)), End::AtStep { .. } | End::StopsAtStep { .. }) => {
                victim.has_answered = true;
                self.tally.answer(&text);
                let child_ended = !text.ends_with("children_killed=0");
                // At once: its threads go on, and its end must not be noticed late.
                match (victim.disarm(&self.board), end) {
                    (Ok(at_rest), End::AtStep { step, .. }) => {
                        if child_ended || at_rest.is_some() {
                            *self.tally.by_step.entry(step).or_default() += 1;
                        } else {
                            self.tally.not_reached += 1;
                        }
                        at_rest.is_some()
                    }
                    (Ok(at_rest), _) => at_rest.is_some(),
                    (Err(outcome), _) => {
                        self.tally
                            .violation(format!("{:?} {}, disarmed: {outcome:?}", victim.role, victim.who));
                        victim.end_it();
                        true
                    }
                }
            }
            (outcome, _) => {
                self.tally.violation(format!("{:?} {}, the victim: {outcome:?}", victim.role, victim.who));
                victim.end_it();
                true
            }
        }
    }

    /// The survivors come to rest, have what they had, and were not lied to; of the dead nothing is left.
    fn settle(&mut self, dead: Option<&Member>) {
        let mut index = 0;
        while index < self.members.len() {
            let member = &mut self.members[index];
            let answered = std::mem::take(&mut member.has_answered);
            let outcome =
                if answered { Outcome::Answer(Ok(String::new())) } else { member.actor.outcome(bound()) };
            let ended = match outcome {
                Outcome::Answer(Ok(text)) => {
                    self.tally.answer(&text);
                    member.disarm(&self.board)
                }
                other => Err(other),
            };
            if let Ok(None) = ended {
                index += 1;
                continue;
            }
            let mut member = self.members.swap_remove(index);
            match ended {
                Ok(Some(step)) => *self.tally.by_step.entry(step).or_default() += 1,
                wrong => self.tally.violation(format!("{:?} {}: {wrong:?}", member.role, member.who)),
            }
            member.end_it();
            self.bury(&member);
        }
        if let Some(complaint) = self.board.complaint() {
            self.tally.violation(complaint);
        }
        let known: BTreeSet<u32> = self.members.iter().map(|member| member.actor.pid()).collect();
        for orphan in crew::reap_orphans(&known) {
            self.tally.violation(format!("process {orphan}, forked by one that was killed, does not end"));
        }
        // Nobody has anything open any more.
        for member in self.members.iter_mut().filter(|member| member.role == Role::Producer) {
            if let Some(holds) = member.still_holds() {
                self.tally.violation(format!("{:?} {}: {holds}", member.role, member.who));
            }
        }
        for member in self.members.iter().chain(dead) {
            if let Some(left) = member.buffers_left() {
                self.tally.violation(format!("{:?} {}: {left}", member.role, member.who));
            }
        }
        let mut leaking = Vec::new();
        for (index, member) in self.members.iter_mut().enumerate() {
            if let Some(leaks) = member.leaks() {
                self.tally.violation(format!("{:?} {}: {leaks}", member.role, member.who));
                leaking.push(index);
            }
        }
        // Once is enough.
        for index in leaking.into_iter().rev() {
            let mut member = self.members.swap_remove(index);
            member.end_it();
            self.bury(&member);
        }
    }
}
