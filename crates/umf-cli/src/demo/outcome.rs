//! What came of a demo, as programs read it.

use serde::Serialize;
use serde_json::json;
use umf::config::Settings;

use super::plan::Plan;
use super::ranks::Reports;
use super::words::Report;

/// What came of a demo.
pub(super) struct Outcome {
    pub plan: Plan,
    pub exchange: String,
    pub carried: String,
    pub ranks: Vec<Report>,
    /// What is left behind, in words; should be empty.
    pub left: Vec<String>,
}

/// The value of a settings key, as text.
pub(super) fn setting(settings: &Settings, key: &str) -> String {
    settings.report().into_iter().find(|row| row.key == key).map_or_else(String::new, |row| row.value)
}

impl Outcome {
    pub(super) fn new(plan: &Plan, exchange: String, reports: Reports) -> Outcome {
        let mut left = reports.left;
        for (number, report) in reports.ranks.iter().enumerate() {
            let more = report.after.more_than(&report.before);
            left.extend(more.into_iter().map(|what| format!("rank {number}: {what}")));
        }
        Outcome { plan: plan.clone(), exchange, carried: reports.carried, ranks: reports.ranks, left }
    }

    /// Handles that were made.
    pub(super) fn handles(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.exported).sum()
    }

    /// Opens of another rank's handle.
    pub(super) fn opens(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.opened).sum()
    }

    /// Handles of freed blocks that were refused.
    pub(super) fn stale(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.stale_refused).sum()
    }

    /// One JSON document.
    pub(super) fn json(&self) -> Result<String, std::io::Error> {
        #[derive(Serialize)]
        struct Rank<'a> {
            rank: usize,
            #[serde(flatten)]
            report: &'a Report,
        }
        let ranks: Vec<_> =
            self.ranks.iter().enumerate().map(|(rank, report)| Rank { rank, report }).collect();
        let document = json!({
            "format": 1,
            "ranks": self.plan.ranks,
            "blocks": self.plan.blocks,
            "size": self.plan.size,
            "exchange": self.exchange,
            "provider": self.plan.provider,
            "carried": self.carried,
            "handles": self.handles(),
            "handle_bytes": umf::ipc::HANDLE_SIZE,
            "opens": self.opens(),
            "bytes": u64::from(self.plan.ranks) * self.plan.rank_bytes(),
            "stale_refused": self.stale(),
            "left_behind": self.left,
            "per_rank": ranks,
        });
        Ok(serde_json::to_string_pretty(&document)? + "\n")
    }

    /// Whether all is as it should be; that contents are right was checked on the way.
    pub(super) fn verdict(&self) -> Result<(), String> {
        if self.left.is_empty() { Ok(()) } else { Err(format!("left behind: {}", self.left.join(", "))) }
    }
}
