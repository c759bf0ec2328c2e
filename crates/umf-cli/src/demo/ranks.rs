//! The launcher's side of a demo: starts the ranks and has them do one thing after the other.

use std::time::Duration;

use serde::Serialize;
use umf::Handle;

use super::census::Census;
use super::plan::Plan;
use super::words::{Answer, Order, Report};
use crate::failure::Failure;
use crate::info::kernel_files;
use crate::progress::Progress;
use crate::worker::{self, Worker};

/// What the launcher has to tell.
pub(super) struct Reports {
    pub ranks: Vec<Report>,
    /// What a handle carries besides its own bytes, in words.
    pub carried: String,
    /// What is left of the demo outside of the ranks, in words.
    pub left: Vec<String>,
}

/// Runs the demo. Whatever happens, no rank is left when it returns.
///
/// # Errors
/// The rank that failed, when, and why.
pub(super) fn run(plan: &Plan, exchange: &str, timeout: Option<Duration>) -> Result<Reports, Failure> {
    let before = Census::now();
    let mut ranks = Ranks::start(plan, exchange, timeout)?;
    let carried = ranks.play(plan)?;
    let reports = ranks.leave()?;
    let mut left = Census::now().more_than(&before);
    left.extend(sockets(&reports));
    let names = reports.iter().flat_map(|report| report.before.shared_memory_names());
    left.extend(names.filter(|name| std::path::Path::new(name).exists()).map(|name| format!("name {name}")));
    Ok(Reports { ranks: reports, carried, left })
}

/// What a handle carries besides its own bytes.
fn carried(handle: &Handle) -> String {
    match (handle.data_fd().is_some(), handle.native().len()) {
        (true, 0) => "a descriptor".to_owned(),
        (true, native) => format!("a descriptor and {native} bytes of the driver's"),
        (false, native) => format!("{native} bytes of the driver's"),
    }
}

/// Abstract sockets that bear the names of the ranks.
fn sockets(reports: &[Report]) -> Vec<String> {
    let sockets = kernel_files::text("/proc/net/unix").unwrap_or_default();
    let names = sockets.lines().filter_map(|line| line.split('@').nth(1));
    let nonces: Vec<&str> = reports.iter().filter_map(|report| report.nonce.as_deref()).collect();
    let ours = names.filter(|name| nonces.iter().any(|nonce| name.contains(nonce)));
    ours.map(|name| format!("socket @{name}")).collect()
}

struct Ranks {
    workers: Vec<Worker>,
    timeout: Duration,
    progress: Progress,
}

impl Ranks {
    fn start(plan: &Plan, exchange: &str, timeout: Option<Duration>) -> Result<Ranks, Failure> {
        let mut progress = Progress::new();
        let json = serde_json::to_string(plan).map_err(|error| Failure::Told(error.to_string()))?;
        let mut workers = Vec::new();
        for number in 0..plan.ranks {
            progress.step(format!("starting process {} of {}", number + 1, plan.ranks));
            let arguments = ["demo", "--rank", &number.to_string(), &json];
            let worker = Worker::start(&arguments, &[("UMF_IPC_EXCHANGE", exchange)]);
            workers.push(worker.map_err(|why| Failure::Told(format!("rank {number}: {why}")))?);
        }
        // A rank that gets little time writes 20 MB and opens 5,000 handles a second.
        let all = u64::from(plan.ranks) * plan.rank_bytes() / (20 << 20) + plan.opens() / 5_000;
        let timeout = timeout.unwrap_or(Duration::from_secs(30 + all));
        Ok(Ranks { workers, timeout, progress })
    }

    fn play(&mut self, plan: &Plan) -> Result<String, Failure> {
        let mut exported = Vec::new();
        for (number, answer) in (0..).zip(self.all("filling and exporting blocks", &Order::Export)?) {
            match answer {
                Answer::Exported(handles) => exported.push(handles),
                other => return Err(unexpected(number, &other)),
            }
        }
        let carried = exported.iter().flatten().next().map_or_else(String::new, carried);
        for (owner, handles) in (0..).zip(exported) {
            self.open(plan, owner, handles)?;
        }
        for round in plan.rounds() {
            self.all("answering", &Order::Answer(round))?;
            self.all("checking answers", &Order::Verify(round))?;
        }
        for number in 0..self.workers.len() {
            self.some(&format!("rank {number}: measuring"), &[number], &Order::Measure)?;
        }
        self.all("freeing blocks", &Order::Free)?;
        self.all("trying handles of freed blocks", &Order::OpenStale)?;
        self.all("emptying the caches", &Order::LetGo)?;
        Ok(carried)
    }

    /// Has everybody but `owner` open its handles.
    fn open(&mut self, plan: &Plan, owner: u32, handles: Vec<Handle>) -> Result<(), Failure> {
        let others: Vec<usize> = (0..self.workers.len()).filter(|number| *number != owner as usize).collect();
        let step = format!("opening the blocks of rank {owner} ({} of {})", owner + 1, plan.ranks);
        self.some(&step, &others, &Order::Open { owner, handles })?;
        Ok(())
    }

    fn leave(mut self) -> Result<Vec<Report>, Failure> {
        let answers = self.all("leaving", &Order::Leave)?;
        let mut reports = Vec::new();
        for (number, answer) in (0..).zip(answers) {
            match answer {
                Answer::Left(report) => reports.push(*report),
                other => return Err(unexpected(number, &other)),
            }
        }
        for (number, worker) in self.workers.into_iter().enumerate() {
            let pid = worker.pid();
            worker
                .finish()
                .map_err(|silence| Failure::Told(format!("rank {number} (process {pid}) {silence}")))?;
        }
        Ok(reports)
    }

    fn all(&mut self, step: &str, order: &impl Serialize) -> Result<Vec<Answer>, Failure> {
        let everybody: Vec<usize> = (0..self.workers.len()).collect();
        self.some(step, &everybody, order)
    }

    /// Gives an order to the ranks `numbers`, in ascending order, and waits for their answers.
    fn some(
        &mut self,
        step: &str,
        numbers: &[usize],
        order: &impl Serialize,
    ) -> Result<Vec<Answer>, Failure> {
        self.progress.step(step);
        let order = serde_json::to_string(order).map_err(|error| Failure::Told(error.to_string()))?;
        let mut asked: Vec<(usize, &mut Worker)> =
            self.workers.iter_mut().enumerate().filter(|(number, _)| numbers.contains(number)).collect();
        asked.iter_mut().for_each(|(_, worker)| worker.say(&order));
        let fail = |number: usize, pid: u32, why: &dyn std::fmt::Display| {
            Failure::Told(format!("rank {number} (process {pid}) {why}, while {step}"))
        };
        let pids: Vec<(usize, u32)> = asked.iter().map(|(number, worker)| (*number, worker.pid())).collect();
        let mut workers: Vec<&mut Worker> = asked.iter_mut().map(|(_, worker)| &mut **worker).collect();
        worker::converse(&mut workers, self.timeout, || self.progress.tick())
            .map_err(|(index, silence)| fail(pids[index].0, pids[index].1, &silence))?;
        let mut answers = Vec::new();
        for (number, worker) in asked {
            let pid = worker.pid();
            match worker.answer().map_err(|silence| fail(number, pid, &silence))? {
                Answer::Failed(why) => return Err(fail(number, pid, &format!("failed: {why}"))),
                answer => answers.push(answer),
            }
        }
        Ok(answers)
    }
}

fn unexpected(number: u32, answer: &Answer) -> Failure {
    let answer: String = format!("{answer:?}").chars().take(80).collect();
    Failure::Told(format!("rank {number} said something else than was to come: {answer}"))
}
