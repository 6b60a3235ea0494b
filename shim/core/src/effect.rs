//! What a shim does about what happened.

use crate::event::{OpId, Process, ReqId};
use crate::id::Id;
use crate::reply::{Exit, Failure, Reply};

/// The processes that get a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The process alone.
    Process,
    /// Every process in the container's cgroup.
    Container,
    /// The process and everything it started.
    Tree,
}

/// One thing for the shell to do. Effects are performed in the order in which they are polled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Answer a request; the last mention of its id.
    Reply {
        /// The request.
        to: ReqId,
        /// The answer.
        reply: Result<Reply, Failure>,
    },
    /// The state of the process allows the request: the shell answers it from what it holds and sees.
    Allow {
        /// The request.
        to: ReqId,
        /// The process that it is about.
        process: Process,
        /// Its pid.
        pid: u32,
    },
    /// Do something that takes time; exactly one `Spawned` or `Finished` event follows.
    Run {
        /// Named in the outcome.
        op: OpId,
        /// What to do.
        action: Action,
    },
    /// Keep the request's description of an exec until it is started or forgotten.
    KeepExec {
        /// The exec.
        process: Process,
        /// The request that describes it.
        from: ReqId,
    },
    /// Send a signal; a receiver that is gone is no error.
    Signal {
        /// The process.
        process: Process,
        /// Its pid, not yet reaped by the shell.
        pid: u32,
        /// Signal number.
        signal: i32,
        /// The processes that get it.
        scope: Scope,
    },
    /// End an action early: kill the runtime call. It still ends in its outcome.
    Cancel(OpId),
    /// Read what the process's pipes hold now, without waiting. [`Event::Drained`] follows once that is written
    /// where it belongs.
    ///
    /// [`Event::Drained`]: crate::Event::Drained
    Drain(Process),
    /// Write the exit record of a container, in the place of an earlier one. Comes as soon as the end is known, before
    /// anything waits: what reads the record once the shim is gone must not depend on what the exit is told after.
    Persist {
        /// The container.
        task: Id,
        /// Its end.
        exit: Exit,
    },
    /// Tell containerd.
    Publish(Notice),
    /// Tell clients attached to the process that it has ended with this code.
    EndStreams {
        /// The process.
        process: Process,
        /// Exit code.
        code: u32,
    },
    /// Drop everything held for a process that is deleted.
    Forget(Process),
    /// The same for a container that its runtime could not be made to forget: what was noted of it stays, and who cleans
    /// up after the shim finds it.
    Abandon(Id),
    /// End the shim once what was said is sent.
    Exit,
}

/// Effects that take time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Mount the root file system, open the streams, have the runtime create the container. On failure everything is
    /// undone before the outcome is reported.
    Create {
        /// The container.
        task: Id,
        /// The request that describes it.
        from: ReqId,
    },
    /// Mount the root file system of a container that a checkpoint is to be restored in, and look at the checkpoint. On
    /// failure everything is undone before the outcome is reported.
    Prepare {
        /// The container.
        task: Id,
        /// The request that describes it.
        from: ReqId,
    },
    /// Have the runtime start the container.
    Start(Id),
    /// Open the streams and have the runtime restore a prepared container from its checkpoint. On failure it is as
    /// prepared as before.
    Restore(Id),
    /// Have the runtime start an exec. When `from` is given it describes the exec, else an earlier `KeepExec` did.
    Exec {
        /// The exec.
        process: Process,
        /// The request that describes it.
        from: Option<ReqId>,
    },
    /// Have the runtime freeze the container.
    Pause(Id),
    /// Have the runtime thaw the container.
    Resume(Id),
    /// Have the runtime change the container's resources.
    Update {
        /// The container.
        task: Id,
        /// The request with the resources.
        from: ReqId,
    },
    /// Have the runtime write a checkpoint.
    Checkpoint {
        /// The container.
        task: Id,
        /// The request with the options.
        from: ReqId,
    },
    /// Have the runtime forget the container, by force, and unmount its root file system.
    Delete(Id),
    /// Enter the pod's namespaces as the created sandbox asks.
    StartSandbox,
    /// Let go of everything that the sandbox holds, except the namespaces that the shim itself is in.
    ReleaseSandbox,
}

/// An event for containerd (`api/events/task.proto`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// `/tasks/create`
    Created {
        /// The container.
        task: Id,
        /// Pid of its init, 0 when a checkpoint is to be restored.
        pid: u32,
    },
    /// `/tasks/start`
    Started {
        /// The container.
        task: Id,
        /// Pid of its init.
        pid: u32,
    },
    /// `/tasks/exec-added`
    ExecAdded {
        /// The container.
        task: Id,
        /// The exec.
        exec: Id,
    },
    /// `/tasks/exec-started`
    ExecStarted {
        /// The container.
        task: Id,
        /// The exec.
        exec: Id,
        /// Its pid.
        pid: u32,
    },
    /// `/tasks/exit`
    Exited {
        /// The process.
        process: Process,
        /// Its pid.
        pid: u32,
        /// How it ended.
        exit: Exit,
    },
    /// `/tasks/delete`, of a container only: nobody is told of the deletion of an exec.
    Deleted {
        /// The container.
        task: Id,
        /// Its pid.
        pid: u32,
        /// How it had ended.
        exit: Exit,
    },
    /// `/tasks/oom`
    Oom(Id),
    /// `/tasks/paused`
    Paused(Id),
    /// `/tasks/resumed`
    Resumed(Id),
    /// `/tasks/checkpointed`
    Checkpointed(Id),
}
