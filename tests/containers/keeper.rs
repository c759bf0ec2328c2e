//! The main process of a container: starts actors, forwards commands to them, and kills them.
//!
//! The runner sees one pair of pipes per container, whatever namespaces it has and whichever tool
//! made it. Each line gets one line as its answer:
//!
//! | line | what the keeper does |
//! |---|---|
//! | `ping` | answers `ok` |
//! | `start NAME UID` | starts an actor as this user, or as its own user if UID is `-` |
//! | `kill NAME` | sends it SIGKILL and reaps it |
//! | `to NAME COMMAND` | forwards the command, and answers with the actor's answer |
//!
//! The keeper ends when its standard input ends, and kills its actors.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

struct Actor {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Executes lines until the input ends. `program` is that of the actors.
pub(crate) fn run(program: &Path) {
    let mut actors = HashMap::new();
    for line in io::stdin().lines() {
        let Ok(line) = line else { return };
        let answer =
            execute(program, &mut actors, &line).unwrap_or_else(|error| format!("err Keeper {error}\n"));
        let mut output = io::stdout();
        if output.write_all(answer.as_bytes()).and_then(|()| output.flush()).is_err() {
            return;
        }
    }
}

fn execute(program: &Path, actors: &mut HashMap<String, Actor>, line: &str) -> io::Result<String> {
    let words: Vec<&str> = line.splitn(3, ' ').collect();
    let missing = |name: &str| io::Error::other(format!("there is no actor {name}"));
    match words[..] {
        ["ping"] => {}
        ["start", name, user] => {
            let mut command = Command::new(program);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            if let Ok(user) = user.parse() {
                command.uid(user).gid(user);
            }
            let mut child = command.spawn()?;
            let (input, output) = (child.stdin.take(), child.stdout.take());
            let (Some(input), Some(output)) = (input, output) else { return Err(missing(name)) };
            actors.insert(name.to_owned(), Actor { child, input, output: BufReader::new(output) });
            return forward(actors, name, "ping");
        }
        ["kill", name] => drop(actors.remove(name).ok_or_else(|| missing(name))?),
        ["to", name, command] => return forward(actors, name, command),
        _ => return Err(io::Error::other(format!("unknown line {line:?}"))),
    }
    Ok("ok \n".to_owned())
}

fn forward(actors: &mut HashMap<String, Actor>, name: &str, command: &str) -> io::Result<String> {
    let actor = actors.get_mut(name).ok_or_else(|| io::Error::other(format!("there is no actor {name}")))?;
    writeln!(actor.input, "{command}")?;
    let mut answer = String::new();
    actor.output.read_line(&mut answer)?;
    if answer.ends_with('\n') { Ok(answer) } else { Err(io::Error::other(format!("actor {name} has ended"))) }
}
