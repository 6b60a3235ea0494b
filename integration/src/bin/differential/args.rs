//! The command line.

use std::ops::RangeInclusive;

use anyhow::{Context as _, Result, bail, ensure};

/// What `--help` shows.
pub(crate) const HELP: &str = r"usage: scripts/differential [--only CASE]… [--seed A..B] [--at-once N] [--output json]

Gives the same pods to a node of Berth and to one of the real kubelet, in one cluster of a private world, and compares what
can be seen of them: statuses, events, OCI specifications, cgroups, logs and what containers see; when they have come to what
they come to, after a kill, after a restart of the agents and after their deletion. Needs root and no registry.

  --only CASE       plays cases alone whose names begin with this
  --seed A..B       plays the pods of these seeds, B among them, and without --only no others
  --at-once N       so many pods at once on each node: 40 unless said otherwise
  --restart-every N the agents are started anew in every so many batches: in each unless said otherwise
  --output json     prints the findings for programs

Without arguments the whole catalogue is played. In target/differential stay report.json, report.txt, what was seen of each
case where it differs, and the logs of both nodes. Ends with 1 when a difference is not explained (docs/differential.md).
";

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Help,
    Run(Args),
}

/// What is played, and how it is told.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Args {
    pub(crate) only: Vec<String>,
    pub(crate) seeds: Option<RangeInclusive<u64>>,
    pub(crate) at_once: usize,
    pub(crate) restart_every: usize,
    pub(crate) as_json: bool,
}

pub(crate) fn parse(args: &[String]) -> Result<Asked> {
    let mut asked = Args { only: Vec::new(), seeds: None, at_once: 40, restart_every: 1, as_json: false };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--help" | "-h" => return Ok(Asked::Help),
            "--only" => asked.only.push(value()?.clone()),
            "--seed" => asked.seeds = Some(seeds(value()?)?),
            "--at-once" => asked.at_once = value()?.parse().context("--at-once needs a number")?,
            "--restart-every" => {
                asked.restart_every = value()?.parse().context("--restart-every needs a number")?;
            }
            "--output" => {
                ensure!(value()? == "json", "--output is json, or left out");
                asked.as_json = true;
            }
            other => bail!("no such argument: {other}\n\n{HELP}"),
        }
    }
    ensure!((1..=100).contains(&asked.at_once), "--at-once is 1 to 100: a node takes 110 pods");
    ensure!(asked.restart_every > 0, "--restart-every is 1 at least");
    Ok(Asked::Run(asked))
}

/// `A..B`, or `A` alone.
fn seeds(text: &str) -> Result<RangeInclusive<u64>> {
    let number = |text: &str| text.parse::<u64>().with_context(|| format!("--seed: {text:?} is no number"));
    match text.split_once("..") {
        Some((first, last)) => Ok(number(first)?..=number(last)?),
        None => Ok(number(text)?..=number(text)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Asked> {
        parse(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn what_is_asked_for() {
        let usual = || Args { only: Vec::new(), seeds: None, at_once: 40, restart_every: 1, as_json: false };
        for (args, expected) in [
            (&[][..], usual()),
            (&["--seed", "1..500"], Args { seeds: Some(1..=500), ..usual() }),
            (&["--seed", "7"], Args { seeds: Some(7..=7), ..usual() }),
            (
                &["--only", "env", "--only", "user"],
                Args { only: vec!["env".to_owned(), "user".to_owned()], ..usual() },
            ),
            (&["--output", "json", "--at-once", "5"], Args { as_json: true, at_once: 5, ..usual() }),
        ] {
            assert_eq!(parsed(args).unwrap(), Asked::Run(expected), "{args:?}");
        }
        assert_eq!(parsed(&["--only", "x", "--help"]).unwrap(), Asked::Help);
    }

    #[test]
    fn what_cannot_be_asked_for() {
        for (args, word) in [
            (&["--fast"][..], "no such argument: --fast"),
            (&["--seed", "a..b"], "is no number"),
            (&["--seed"], "--seed needs a value"),
            (&["--at-once", "0"], "--at-once is 1 to 100"),
            (&["--output", "yaml"], "--output is json"),
        ] {
            let said = format!("{:#}", parsed(args).unwrap_err());
            assert!(said.contains(word), "{args:?}: {said}");
        }
    }
}
