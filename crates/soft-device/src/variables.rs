//! Settings of a driver, from variables of the environment.

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
