//! The cases, by what they are about.

mod bootstrap;
mod costs;
mod crash;
mod events;
mod exec;
mod exec_streams;
mod groups;
mod hostile;
mod kill;
mod lifecycle;
mod members;
mod output;
mod refusals;
mod resources;
mod sandbox;
mod stdin;
mod terminal;

use crate::harness::World;

/// One thing that the contract says.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) needs: Needs,
    pub(crate) test: fn(&World),
}

/// What a case is run with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// It is about the shim, whatever the runtime does: run once, with the fake one.
    Shim,
    /// It is about containers: run with each runtime.
    Containers,
}

/// The service that a group of cases calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    /// Every shim has it.
    Task,
    /// A shim may have it.
    Sandbox,
}

/// Cases of one subject.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) name: &'static str,
    pub(crate) service: Service,
    pub(crate) cases: &'static [Case],
}

const fn shim(name: &'static str, test: fn(&World)) -> Case {
    Case { name, needs: Needs::Shim, test }
}

const fn containers(name: &'static str, test: fn(&World)) -> Case {
    Case { name, needs: Needs::Containers, test }
}

const fn tasks(name: &'static str, cases: &'static [Case]) -> Group {
    Group { name, service: Service::Task, cases }
}

const fn sandboxes(name: &'static str, cases: &'static [Case]) -> Group {
    Group { name, service: Service::Sandbox, cases }
}

/// All of them. What takes long comes first, so that nothing is waited for at the end.
pub(crate) const GROUPS: &[Group] = &[
    tasks("costs", costs::CASES),
    tasks("events", events::CASES),
    tasks("bootstrap", bootstrap::CASES),
    tasks("crash", crash::CASES),
    tasks("exec", exec::CASES),
    tasks("exec_streams", exec_streams::CASES),
    tasks("groups", groups::CASES),
    tasks("hostile", hostile::CASES),
    tasks("kill", kill::CASES),
    tasks("lifecycle", lifecycle::CASES),
    tasks("output", output::CASES),
    tasks("refusals", refusals::CASES),
    tasks("resources", resources::CASES),
    tasks("stdin", stdin::CASES),
    tasks("terminal", terminal::CASES),
    sandboxes("sandbox", sandbox::CASES),
    sandboxes("members", members::CASES),
];
