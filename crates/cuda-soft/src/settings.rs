//! Settings, from the environment: `CUDA_SOFT_*`, and `CUDA_VISIBLE_DEVICES` as every CUDA driver has it.

use std::time::Duration;

use soft_device::Variables;

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Which devices of the machine the process sees, in which order.
    pub(crate) devices: Vec<u32>,
    /// Bytes of each device.
    pub(crate) memory: u64,
    pub(crate) peers: bool,
    /// What the devices lack: `virtual`, `fds`, `fabric`, `dma-buf`, `managed`. `fabric`, unless said otherwise.
    pub(crate) lacks: Vec<String>,
    pub(crate) version: i32,
    pub(crate) fds: u64,
    /// How long each command lasts at least.
    pub(crate) delay: Duration,
    pub(crate) faults: String,
}

impl Settings {
    /// Reads them.
    ///
    /// # Errors
    /// The variable that is wrong, and what would be right.
    pub(crate) fn read(find: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let variables = Variables(find);
        let count = u32::try_from(variables.number("CUDA_SOFT_DEVICES", 2, 0, 64)?).unwrap_or(0);
        let visible = variables.0("CUDA_VISIBLE_DEVICES").map(|list| {
            // As CUDA has it: the first that is none ends the list.
            let numbers = list.split(',').map(|number| number.trim().parse::<u32>().ok());
            numbers.map_while(|number| number.filter(|number| *number < count)).collect()
        });
        let lacks = variables.text("CUDA_SOFT_LACKS").unwrap_or_else(|| "fabric".to_owned());
        let lacks: Vec<String> =
            lacks.split(',').map(|what| what.trim().to_owned()).filter(|what| !what.is_empty()).collect();
        const KNOWN: [&str; 5] = ["virtual", "fds", "fabric", "dma-buf", "managed"];
        if let Some(unknown) = lacks.iter().find(|what| !KNOWN.contains(&what.as_str())) {
            return Err(format!("CUDA_SOFT_LACKS: {unknown}: one of {} is expected", KNOWN.join(", ")));
        }
        Ok(Self {
            devices: visible.unwrap_or_else(|| (0..count).collect()),
            memory: variables.number("CUDA_SOFT_MEMORY", 1 << 30, 1 << 21, 1 << 46)?,
            peers: variables.choice("CUDA_SOFT_PEERS", &["all", "none"])? == 0,
            lacks,
            version: i32::try_from(variables.number("CUDA_SOFT_VERSION", 12040, 10000, 99_999)?).unwrap_or(0),
            fds: variables.number("CUDA_SOFT_MAX_FDS", u64::MAX, 0, u64::MAX)?,
            delay: Duration::from_micros(variables.number("CUDA_SOFT_DELAY", 0, 0, 60_000_000)?),
            faults: variables.text("CUDA_SOFT_FAULTS").unwrap_or_default(),
        })
    }

    pub(crate) fn has(&self, what: &str) -> bool {
        !self.lacks.iter().any(|lack| lack == what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, value: &str) -> Result<Settings, String> {
        Settings::read(|wanted| (wanted == name).then(|| value.to_owned()))
    }

    #[test]
    fn visible_devices_are_chosen_and_ordered() {
        for (list, expected) in [("1,0", vec![1, 0]), ("1", vec![1]), ("0,7,1", vec![0]), ("", vec![])] {
            assert_eq!(read("CUDA_VISIBLE_DEVICES", list).unwrap().devices, expected, "{list}");
        }
        assert_eq!(read("CUDA_SOFT_DEVICES", "3").unwrap().devices, [0, 1, 2]);
    }

    #[test]
    fn what_is_wrong_says_what_would_be_right() {
        for (name, value) in
            [("CUDA_SOFT_LACKS", "legs"), ("CUDA_SOFT_PEERS", "some"), ("CUDA_SOFT_MEMORY", "x")]
        {
            assert!(read(name, value).unwrap_err().starts_with(name), "{name}");
        }
    }
}
