//! The command line.

use anyhow::{Context as _, Result, bail, ensure};
use berth_integration::vm::Init;

/// What `--help` shows.
pub(crate) const HELP: &str = r"usage: scripts/conformance [--kubelet] [--vm | --systemd] [--slow] [--labels FILTER] [--procs N] [FOCUS]

Builds the suite for clusters of upstream (k8s.io/kubernetes/test/e2e), and runs it against a node in a private world:
a control plane, one node of Berth and a registry with images that are made here. Needs root and no registry.

  FOCUS             runs only specs whose whole name matches this regular expression
  --kubelet         the node is one of the real kubelet and of containerd's CRI
  --vm              all of it is in a virtual machine, which has cgroups of version 2 and no address translation
  --systemd         in a virtual machine with systemd
  --slow            runs specs with the label Slow too, some of which take half an hour
  --labels FILTER   runs specs with these labels, in ginkgo's words, in place of
                    'NodeConformance && !Flaky && !Slow'
  --procs N         runs so many specs at the same time: 4 unless said otherwise, at least 2; serial ones run alone

A line is printed for each spec that has ended, and a table at the end. In target/conformance/berth, or kubelet, or
berth-vm and so on, stay junit.xml, ginkgo.json and specs.json for programs, ginkgo.log with all that the suite said, and
the logs of the node and of the control plane. Ends with 1 when a spec failed, or when none was run.
";

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Help,
    Run(Args),
}

/// What the node is one of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Berth,
    Kubelet,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Berth => "berth",
            Self::Kubelet => "kubelet",
        }
    }
}

/// Which specs are run, and where.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Args {
    pub(crate) node: Kind,
    /// What is process 1 of the virtual machine that it is in.
    pub(crate) guest: Option<Init>,
    pub(crate) labels: String,
    pub(crate) focus: Option<String>,
    pub(crate) procs: u8,
}

impl Args {
    /// Names the directory of its results.
    pub(crate) fn name(&self) -> String {
        let beside = match self.guest {
            None => "",
            Some(Init::Plain) => "-vm",
            Some(Init::Systemd) => "-systemd",
        };
        format!("{}{beside}", self.node.name())
    }

    /// The same for who runs it in the virtual machine.
    pub(crate) fn inside(&self) -> Vec<String> {
        let node = (self.node == Kind::Kubelet).then(|| "--kubelet".to_owned());
        let rest = ["--labels".to_owned(), self.labels.clone(), "--procs".to_owned(), self.procs.to_string()];
        node.into_iter().chain(rest).chain(self.focus.clone()).collect()
    }
}

pub(crate) fn parse(args: &[String]) -> Result<Asked> {
    let (mut node, mut guest, mut is_slow) = (Kind::Berth, None, false);
    let (mut labels, mut focus, mut procs) = (None, None, 4);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--help" | "-h" => return Ok(Asked::Help),
            "--kubelet" => node = Kind::Kubelet,
            "--vm" => guest = Some(Init::Plain),
            "--systemd" => guest = Some(Init::Systemd),
            "--slow" => is_slow = true,
            "--labels" => labels = Some(value()?.clone()),
            "--procs" => procs = value()?.parse().context("--procs needs a number")?,
            flag if flag.starts_with('-') => bail!("no such flag: {flag}\n\n{HELP}"),
            one => ensure!(focus.replace(one.to_owned()).is_none(), "more than one focus\n\n{HELP}"),
        }
    }
    ensure!(procs >= 2, "--procs has to be at least 2");
    let slow = if is_slow { "" } else { " && !Slow" };
    let labels = labels.unwrap_or_else(|| format!("NodeConformance && !Flaky{slow}"));
    Ok(Asked::Run(Args { node, guest, labels, focus, procs }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Asked> {
        parse(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>())
    }

    fn run(node: Kind, labels: &str, focus: Option<&str>, procs: u8) -> Asked {
        let (labels, focus) = (labels.to_owned(), focus.map(str::to_owned));
        Asked::Run(Args { node, guest: None, labels, focus, procs })
    }

    #[test]
    fn what_is_asked_for() {
        let usual = "NodeConformance && !Flaky && !Slow";
        for (args, expected) in [
            (&[][..], run(Kind::Berth, usual, None, 4)),
            (&["--kubelet", "Probing"], run(Kind::Kubelet, usual, Some("Probing"), 4)),
            (&["--slow", "--procs", "2"], run(Kind::Berth, "NodeConformance && !Flaky", None, 2)),
            (&["--labels", "Conformance"], run(Kind::Berth, "Conformance", None, 4)),
            (&["Probing", "--help"], Asked::Help),
        ] {
            assert_eq!(parsed(args).unwrap(), expected, "{args:?}");
        }
    }

    #[test]
    fn a_virtual_machine_is_asked_for_the_same() {
        for (args, guest, name) in [
            (&["--vm", "--slow", "Probing"][..], Init::Plain, "berth-vm"),
            (&["--kubelet", "--systemd", "--procs", "2"], Init::Systemd, "kubelet-systemd"),
        ] {
            let Asked::Run(asked) = parsed(args).unwrap() else { panic!("{args:?}") };
            assert_eq!((asked.guest, asked.name().as_str()), (Some(guest), name), "{args:?}");
            assert_eq!(
                parse(&asked.inside()).unwrap(),
                Asked::Run(Args { guest: None, ..asked }),
                "{args:?}"
            );
        }
    }

    #[test]
    fn what_cannot_be_asked_for() {
        for (args, word) in [
            (&["a", "b"][..], "more than one focus"),
            (&["--quick"], "no such flag: --quick"),
            (&["--procs"], "--procs needs a value"),
            (&["--procs", "1"], "at least 2"),
        ] {
            let said = format!("{:#}", parsed(args).unwrap_err());
            assert!(said.contains(word), "{args:?}: {said}");
        }
    }
}
