//! Settings of a driver, from variables of the environment.

/// Returns the value of an environment variable; `None` if it is unset, is not UTF-8, or the process
/// has more rights than the user who started it (`AT_SECURE`).
///
/// Drivers read the environment with this function and not with `umf_core::environment`: they stand
/// for drivers that share no code with umf. A library that contains umf-core is never unloaded, and
/// loaders unload drivers.
#[expect(clippy::disallowed_methods, reason = "checks `AT_SECURE` itself, and shares no code with umf")]
#[must_use]
pub fn variable(name: &str) -> Option<String> {
    // SAFETY: `getauxval` takes a number and reads what the kernel gave this process at `execve`.
    let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if is_secure { None } else { std::env::var(name).ok() }
}

/// Reads variables, and says of one that is wrong what would be right.
pub struct Variables<F>(pub F);

impl<F: Fn(&str) -> Option<String>> Variables<F> {
    /// The text of a variable that is there and not empty, without blanks around it.
    pub fn text(&self, name: &str) -> Option<String> {
        (self.0)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    /// A number; K, M, G and T multiply it.
    ///
    /// # Errors
    /// It is none, or not from `least` to `most`.
    pub fn number(&self, name: &str, default: u64, least: u64, most: u64) -> Result<u64, String> {
        match self.text(name) {
            None => Ok(default),
            Some(text) => bytes(&text).filter(|value| (least..=most).contains(value)).ok_or(format!(
                "{name}={text}: a number from {least} to {most} is expected (K, M, G and T multiply)"
            )),
        }
    }

    /// The place of a word among `choices`; the first, if the variable is not there.
    ///
    /// # Errors
    /// It is none of them.
    pub fn choice(&self, name: &str, choices: &[&str]) -> Result<usize, String> {
        match self.text(name) {
            None => Ok(0),
            Some(text) => choices
                .iter()
                .position(|choice| *choice == text)
                .ok_or(format!("{name}={text}: one of {} is expected", choices.join(", "))),
        }
    }
}

fn bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        b'T' => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}
