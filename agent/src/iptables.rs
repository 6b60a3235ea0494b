//! Chains of iptables that other components rely on (`makeIPTablesUtilChains`), made, and made again after a flush.
//!
//! Best effort, as in the kubelet: a machine without iptables has nobody who would need them. Which they are is in
//! `berth_core::derived::iptables`.

use std::time::Duration;

use berth_core::{
    derived::iptables::{Answer, CANARIES, Family, Item, PRESENT, answer, wanted},
    short::short,
};
use tokio::time::{Instant, sleep};

use crate::{
    causes::with_causes,
    one_thread::OneThread,
    program::{Program, ProgramError},
};

/// How often the canary is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Longest call: the lock is waited for 5 s, and a table of many rules takes some more.
const CALL_WITHIN: Duration = Duration::from_secs(60);

/// After the first canary is gone, the time for the others to go too: a flush is table by table, and what were made in its midst
/// would go with the rest.
const FLUSH_WITHIN: Duration = Duration::from_secs(5);

/// Between looks at canaries of a flush.
const FLUSH_LOOK: Duration = Duration::from_millis(100);

/// Most bytes of a program's output that are shown.
const OUTPUT_MAX: usize = 300;

/// Why something could not be made.
#[derive(Debug, thiserror::Error)]
enum IptablesError {
    #[error(transparent)]
    Run(#[from] ProgramError),
    #[error("run {program} {arguments}: {output}")]
    Failed { program: String, arguments: String, output: String },
}

/// The program of a family.
#[derive(Debug, Clone)]
struct Iptables {
    family: Family,
    program: String,
    starter: OneThread,
}

/// Keeps the chains of both families until the agent stops.
pub(crate) async fn keep() {
    let (v4, v6) = (Iptables::of(Family::V4), Iptables::of(Family::V6));
    tokio::join!(v4.keep(LOOK_EVERY), v6.keep(LOOK_EVERY));
}

impl Iptables {
    fn of(family: Family) -> Self {
        Self { family, program: family.program().to_owned(), starter: OneThread::default() }
    }

    async fn keep(self, every: Duration) {
        let program = &self.program;
        if !self.works(every).await {
            tracing::info!(program, "does not work here: chains for other components are not made");
            return;
        }
        if let Err(error) = self.make_all(wanted(self.family)).await {
            tracing::warn!(error = with_causes(&error), "chains for other components are not made");
            return;
        }
        loop {
            while let Err(error) = self.make_all(&CANARIES).await {
                tracing::warn!(error = with_causes(&error), "a flush of iptables would not be noticed");
                sleep(every).await;
            }
            self.flushed(every).await;
            tracing::info!(program, "the tables were flushed: chains for other components are made again");
            if let Err(error) = self.make_all(wanted(self.family)).await {
                tracing::warn!(error = with_causes(&error), "chains for other components are not made");
            }
        }
    }

    /// Whether the machine has it. Who holds its lock for long, or a disk that does not answer, decides nothing.
    async fn works(&self, every: Duration) -> bool {
        loop {
            match self.is_there(&PRESENT).await {
                Ok(Answer::Yes) => return true,
                Ok(Answer::No) => return false,
                Ok(Answer::Unknown)
                | Err(IptablesError::Run(ProgramError::Silent(..) | ProgramError::Unreadable(..))) => {
                    tracing::debug!(program = self.program, "it is not known whether it works here");
                }
                Err(error) => {
                    tracing::debug!(error = with_causes(&error), "look for iptables");
                    return false;
                }
            }
            sleep(every).await;
        }
    }

    async fn make_all(&self, items: &[Item]) -> Result<(), IptablesError> {
        for item in items {
            self.ensure(item).await?;
        }
        Ok(())
    }

    async fn ensure(&self, item: &Item) -> Result<(), IptablesError> {
        // Of two chains of a name there is never a second: making one that is there fails, and that is fine.
        if matches!(item, Item::Rule { .. }) && self.is_there(item).await? == Answer::Yes {
            return Ok(());
        }
        let arguments = item.make();
        let (code, output) = self.call(&arguments).await?;
        let is_there_already = matches!(item, Item::Chain { .. }) && answer(code) == Answer::No;
        if answer(code) == Answer::Yes || is_there_already {
            return Ok(());
        }
        Err(IptablesError::Failed { program: self.program.clone(), arguments: arguments.join(" "), output })
    }

    async fn is_there(&self, item: &Item) -> Result<Answer, IptablesError> {
        Ok(answer(self.call(&item.look()).await?.0))
    }

    /// Returns when the first canary is gone, and then the others or some time.
    async fn flushed(&self, every: Duration) {
        let [first, others @ ..] = &CANARIES;
        loop {
            sleep(every).await;
            match self.is_there(first).await {
                Ok(Answer::No) => break,
                Ok(Answer::Yes) => {}
                Ok(Answer::Unknown) => tracing::debug!("a canary of iptables cannot be looked at"),
                Err(error) => {
                    tracing::warn!(error = with_causes(&error), "a canary of iptables cannot be looked at");
                }
            }
        }
        let deadline = Instant::now() + FLUSH_WITHIN;
        for canary in others {
            while !matches!(self.is_there(canary).await, Ok(Answer::No)) && Instant::now() < deadline {
                sleep(FLUSH_LOOK).await;
            }
        }
    }

    /// Its exit code and what it said.
    async fn call(&self, arguments: &[&str]) -> Result<(Option<i32>, String), IptablesError> {
        let program = Program {
            command: self.program.clone(),
            args: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            env: Vec::new(),
            starter: self.starter.clone(),
        };
        let ended = program.run("", CALL_WITHIN).await?;
        Ok((ended.status.code(), short(ended.complaint, OUTPUT_MAX)))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use tempfile::TempDir;
    use tokio::time::timeout;

    use super::*;
    use crate::written::write_program;

    /// A program that keeps chains and rules as files, as iptables answers.
    const FAKE: &str = r#"#!/bin/sh
cd "$(dirname "$0")/state"
shift 2; operation=$1 chain=$2 table=$4; shift 4
echo "$operation $chain $table" >> ../calls
name="$table.$chain"
case $operation in
    -S) test -e "$name" || test "$chain" = POSTROUTING ;;
    -N) test ! -e "$name" && : > "$name" ;;
    -C) grep -qxF -- "$*" "$name" ;;
    -I|-A) echo "$*" >> "$name" ;;
esac
"#;

    fn fake(family: Family) -> (TempDir, Iptables) {
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join("state")).unwrap();
        let program = dir.path().join(family.program());
        write_program(&program, FAKE);
        (dir, Iptables { program: program.display().to_string(), ..Iptables::of(family) })
    }

    fn state(dir: &TempDir) -> Vec<String> {
        let files = fs::read_dir(dir.path().join("state")).unwrap();
        let mut names: Vec<_> =
            files.map(|file| file.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    async fn until(dir: &TempDir, expected: &[&str]) {
        let reached = async {
            while state(dir) != expected {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(30), reached).await.unwrap_or_else(|_| panic!("{:?}", state(dir)));
    }

    const OF_V4: [&str; 7] = [
        "filter.INPUT",
        "filter.KUBE-FIREWALL",
        "filter.KUBE-KUBELET-CANARY",
        "filter.OUTPUT",
        "mangle.KUBE-IPTABLES-HINT",
        "mangle.KUBE-KUBELET-CANARY",
        "nat.KUBE-KUBELET-CANARY",
    ];

    const OF_V6: [&str; 4] = [
        "filter.KUBE-KUBELET-CANARY",
        "mangle.KUBE-IPTABLES-HINT",
        "mangle.KUBE-KUBELET-CANARY",
        "nat.KUBE-KUBELET-CANARY",
    ];

    #[tokio::test]
    async fn chains_are_made_and_made_again_after_a_flush() {
        let (dir, iptables) = fake(Family::V4);
        let keeping = tokio::spawn(iptables.clone().keep(Duration::from_millis(20)));
        until(&dir, &OF_V4).await;
        for file in state(&dir) {
            fs::remove_file(dir.path().join("state").join(file)).unwrap();
        }
        until(&dir, &OF_V4).await;
        keeping.abort();
        // What is there already is not made twice.
        iptables.make_all(wanted(Family::V4)).await.unwrap();
        let rules = fs::read_to_string(dir.path().join("state/filter.INPUT")).unwrap();
        assert_eq!(rules, "-j KUBE-FIREWALL\n");
    }

    #[tokio::test]
    async fn version_6_has_the_hint_alone() {
        let (dir, iptables) = fake(Family::V6);
        let keeping = tokio::spawn(iptables.keep(Duration::from_secs(60)));
        until(&dir, &OF_V6).await;
        keeping.abort();
    }

    #[tokio::test]
    async fn a_lock_that_is_held_for_long_decides_nothing() {
        let (dir, iptables) = fake(Family::V6);
        let held = dir.path().join("held");
        fs::write(&held, "").unwrap();
        let fake = FAKE.replacen('\n', "\ntest ! -e \"$(dirname \"$0\")/held\" || exit 4\n", 1);
        write_program(Path::new(&iptables.program), &fake);
        assert_eq!(iptables.is_there(&PRESENT).await.unwrap(), Answer::Unknown);
        let keeping = tokio::spawn(iptables.clone().keep(Duration::from_millis(10)));
        sleep(Duration::from_millis(100)).await;
        fs::remove_file(&held).unwrap();
        until(&dir, &OF_V6).await;
        keeping.abort();
    }

    #[tokio::test]
    async fn a_machine_without_iptables_is_left_alone() {
        let missing = Iptables { program: "/no/such/iptables".to_owned(), ..Iptables::of(Family::V4) };
        let ended = timeout(Duration::from_secs(30), missing.keep(Duration::from_secs(60))).await;
        ended.expect("nothing is waited for");
    }
}
