//! Which settings files count.

use std::path::PathBuf;

use crate::{Context, environment};

const FILE_NAME: &str = "umf.toml";

/// A place where a settings file may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) path: PathBuf,
    /// Whether it must be there: somebody named it.
    pub(crate) required: bool,
    /// Whether it may belong to any user and set every key. The working directory's may not.
    pub(crate) trusted: bool,
}

/// The places to look at, weakest first.
///
/// A file that `UMF_TOML` names is the only one. Otherwise the system's, the user's and the working
/// directory's are merged in this order, so that an operator's site-wide values hold where a user or
/// a job does not say otherwise.
pub(crate) fn candidates(context: &Context) -> Vec<Candidate> {
    if let Some(named) = environment::named_file(context) {
        let path = match &context.cwd {
            Some(cwd) => cwd.join(named),
            None => named.to_path_buf(),
        };
        return vec![Candidate { path, required: true, trusted: true }];
    }
    let mut found: Vec<Candidate> = Vec::new();
    let mut add = |folder: PathBuf, trusted| {
        let path = folder.join(FILE_NAME);
        // Started in a configuration folder, a process finds the same file twice.
        if !found.iter().any(|other| other.path == path) {
            found.push(Candidate { path, required: false, trusted });
        }
    };
    if let Some(system) = &context.system {
        add(system.join("umf"), true);
    }
    if !context.secure {
        if let Some(folder) = user_folder(context) {
            add(folder.join("umf"), true);
        }
        if let Some(cwd) = &context.cwd {
            add(cwd.clone(), false);
        }
    }
    found
}

/// `$XDG_CONFIG_HOME`, or `.config` in the home folder. Relative ones are ignored: they would be
/// the working directory by another name.
fn user_folder(context: &Context) -> Option<PathBuf> {
    let xdg = context.variable("XDG_CONFIG_HOME").map(PathBuf::from);
    xdg.filter(|folder| folder.is_absolute()).or_else(|| {
        let home = context.home.as_ref().filter(|home| home.is_absolute())?;
        Some(home.join(".config"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> Context {
        Context {
            cwd: Some("/srv".into()),
            home: Some("/home/me".into()),
            system: Some("/etc".into()),
            ..Context::empty()
        }
    }

    fn paths(context: &Context) -> Vec<String> {
        let paths = candidates(context).into_iter();
        paths.map(|found| found.path.display().to_string()).collect()
    }

    #[test]
    fn system_is_weaker_than_user_is_weaker_than_working_directory() {
        assert_eq!(
            paths(&context()),
            ["/etc/umf/umf.toml", "/home/me/.config/umf/umf.toml", "/srv/umf.toml"]
        );
        let trusted: Vec<_> = candidates(&context()).iter().map(|c| c.trusted).collect();
        assert_eq!(trusted, [true, true, false]);
    }

    #[test]
    fn xdg_replaces_home_unless_it_is_relative() {
        let absolute = context().with_variable("XDG_CONFIG_HOME", "/xdg");
        assert_eq!(paths(&absolute)[1], "/xdg/umf/umf.toml");
        let relative = context().with_variable("XDG_CONFIG_HOME", "xdg");
        assert_eq!(paths(&relative)[1], "/home/me/.config/umf/umf.toml");
    }

    #[test]
    fn a_named_file_is_the_only_one() {
        let named = context().with_variable("UMF_TOML", "mine.toml");
        assert_eq!(paths(&named), ["/srv/mine.toml"]);
        let unnamed = context().with_variable("UMF_TOML", "");
        assert_eq!(paths(&unnamed).len(), 3);
    }

    #[test]
    fn with_more_rights_than_the_starter_only_the_system_counts() {
        let mut secure =
            context().with_variable("UMF_TOML", "/tmp/evil.toml").with_variable("XDG_CONFIG_HOME", "/tmp");
        secure.secure = true;
        assert_eq!(paths(&secure), ["/etc/umf/umf.toml"]);
    }

    #[test]
    fn the_user_folder_stays_trusted_when_it_is_the_working_directory() {
        let mut inside = context();
        inside.cwd = Some("/home/me/.config/umf".into());
        let found = candidates(&inside);
        assert_eq!(found.len(), 2);
        assert!(found[1].trusted);
    }
}
