//! The test programs that run in a guest.

use std::time::Instant;

use anyhow::{Context as _, Result};
use berth_integration::binaries::{self, TestProgram};
use berth_integration::stored;
use berth_integration::vm::{self, Backend, Disk, Init, Job};

/// A test program.
struct Suite {
    name: &'static str,
    program: TestProgram,
    /// Those tests of it that are for a guest of this kind; none of them means all.
    only: fn(Init) -> &'static [&'static str],
    /// It needs systemd.
    systemd: bool,
    /// Tests that say nothing in User-Mode Linux, and why. Those of nodes ask for what they need themselves.
    not_in_uml: &'static [(&'static str, &'static str)],
}

const SUITES: [Suite; 5] = [
    Suite {
        name: "shim",
        program: TestProgram::Test("berth-shim", "shim"),
        only: |_| &[],
        systemd: false,
        not_in_uml: &[
            (
                "a_gibibyte_in_one_sync",
                "it moves a gibibyte through pipes in no less than the test's patience",
            ),
            (
                "fifty_thousand_resizes",
                "its hundred thousand calls take ten times as long there, and know no cgroup",
            ),
        ],
    },
    Suite {
        name: "conformance",
        program: TestProgram::Test("berth-shim", "conformance"),
        only: |_| &[],
        systemd: false,
        not_in_uml: &[(
            "memory_is_flat_over_many_lives",
            "its ten thousand lives take minutes there, and know no cgroup",
        )],
    },
    Suite {
        name: "node",
        program: TestProgram::Test("berth-integration", "it"),
        only: |_| &[],
        systemd: false,
        not_in_uml: &[],
    },
    Suite {
        name: "cluster",
        program: TestProgram::Program("guest-cluster"),
        only: |_| &[],
        systemd: true,
        not_in_uml: &[],
    },
    Suite {
        name: "agent",
        program: TestProgram::Lib("berth"),
        only: |init| match init {
            Init::Plain => &["--ignored", "version_2_of_this_machine"],
            Init::Systemd => &["--ignored", "systemd_of_this_machine"],
        },
        systemd: false,
        not_in_uml: &[],
    },
];

/// Tests that mostly wait: a guest with one processor takes this many at once.
const AT_ONCE: &str = "--test-threads=3";

/// Runs the suite that the first argument names, or all; what follows is for the test programs.
#[expect(clippy::print_stderr, reason = "a command line program")]
pub(crate) fn run(disk: &Disk, init: Init, args: &[&str]) -> Result<u8> {
    let named = args.first().and_then(|first| SUITES.iter().find(|suite| suite.name == *first));
    let (suites, args) = match named {
        Some(suite) => (std::slice::from_ref(suite), args.get(1..).unwrap_or_default()),
        None => (&SUITES[..], args),
    };
    binaries::build()?;
    stored::build()?;
    let mut worst = 0;
    for suite in suites {
        if suite.systemd && init == Init::Plain {
            eprintln!("LEFT OUT, without systemd: the {} tests", suite.name);
            continue;
        }
        let code = suite.run(disk, init, args).with_context(|| format!("the {} tests", suite.name))?;
        worst = worst.max(code);
    }
    Ok(worst)
}

impl Suite {
    #[expect(clippy::print_stderr, reason = "a command line program")]
    fn run(&self, disk: &Disk, init: Init, args: &[&str]) -> Result<u8> {
        let program = binaries::build_test(self.program)?;
        let mut command = vec![program.display().to_string(), AT_ONCE.to_owned()];
        command.extend((self.only)(init).iter().chain(args).map(|&arg| arg.to_owned()));
        if disk.backend() == Backend::Uml {
            for (test, reason) in self.not_in_uml {
                eprintln!("LEFT OUT, in User-Mode Linux: {test}: {reason}");
                command.extend(["--skip".to_owned(), (*test).to_owned()]);
            }
        }
        let (name, below) = match init {
            Init::Plain => (self.name.to_owned(), "cgroup v2"),
            Init::Systemd => (format!("{}-systemd", self.name), "cgroup v2 and systemd"),
        };
        eprintln!("vm: the {} tests, in a guest with {below}", self.name);
        let began = Instant::now();
        let code = vm::run(disk, &Job::new(&name, init, command)?)?;
        eprintln!("vm: the {} tests took {} s, exit code {code}", self.name, began.elapsed().as_secs());
        Ok(code)
    }
}
