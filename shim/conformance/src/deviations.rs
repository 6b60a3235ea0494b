//! Where shims are known to deviate from the contract. Such a case is run and must fail, unless the shim races.

/// A case that a shim is known to fail.
#[derive(Debug)]
pub struct Deviation {
    /// `group::name`.
    pub case: &'static str,
    /// Whether it can pass all the same.
    pub fails: Fails,
    /// What the failure says, so that no other failure is taken for it.
    pub shows: &'static str,
    /// How it deviates, with the source.
    pub why: &'static str,
}

/// How often a shim fails a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fails {
    /// Each time: one that passes is to be taken off the table.
    Always,
    /// Now and then, by a race of its own that a busy machine makes likelier.
    Sometimes,
}

const UNCODED: &str =
    "the states' errors carry no code, so that clients see Unknown (process/{init,exec}_state.go)";

const EARLY: &str = "who waits is answered before the exit is told, so that what a client does next can be told first \
                     (handleProcessExit in task/service.go)";

/// `containerd-shim-runc-v2` of containerd 2.3.7; sources are below `cmd/containerd-shim-runc-v2`.
pub const STOCK: &[Deviation] = &[
    Deviation {
        case: "bootstrap::options_lead_to_a_socket",
        fails: Fails::Always,
        shows: "/run/containerd/s/",
        why: "runtime options of containerd 2.0 to 2.2 decode as BootstrapParams, so that the socket is named after \
              their type and every container of a namespace ends up in one shim (pkg/shim/shim.go)",
    },
    Deviation {
        case: "bootstrap::the_older_version_is_served_too",
        fails: Fails::Always,
        shows: "service containerd.task.v2.Task",
        why: "only version 3 of the task service is registered (task/service.go)",
    },
    Deviation {
        case: "crash::delete_removes_the_socket",
        fails: Fails::Always,
        shows: "!shim.socket().exists()",
        why: "the socket of a killed shim stays (manager.Stop in manager/manager_linux.go)",
    },
    Deviation {
        case: "events::the_order_is_kept_while_containerd_restarts",
        fails: Fails::Always,
        shows: r#"right: ["create", "start", "exit", "delete"]"#,
        why: "each event that could not be sent waits for itself, and later ones overtake it (pkg/shim/publisher.go)",
    },
    Deviation {
        case: "events::short_execs_keep_their_order",
        fails: Fails::Sometimes,
        shows: r#"left: ["create c1", "start c1", "exec-added c1/e0", "exec-started c1/e0","#,
        why: EARLY,
    },
    Deviation {
        case: "events::short_tasks_keep_their_order",
        fails: Fails::Sometimes,
        shows: r#"("start", 0), ("delete","#,
        why: EARLY,
    },
    Deviation {
        case: "kill::a_signal_reaches_all_when_asked",
        fails: Fails::Always,
        shows: "no answer within",
        why: "`all` is handed to runc, which since 1.2 signals the first process alone where the container has a pid \
              namespace (libcontainer/container_linux.go of runc)",
    },
    Deviation {
        case: "lifecycle::pids_of_an_ended_task_are_kept_until_delete",
        fails: Fails::Always,
        shows: "left: []",
        why: "Pids asks the cgroup, so that after a restart containerd takes an ended task for a leftover (task/service.go)",
    },
    Deviation {
        case: "output::leftover_output_does_not_hold_the_exit_up",
        fails: Fails::Always,
        shows: "deleted only after",
        why: "Delete waits ten seconds for the end of output that somebody else holds (process/init.go, containerd #13377)",
    },
    Deviation {
        case: "output::a_file_takes_both_streams",
        fails: Fails::Always,
        shows: "no answer within",
        why: "the end of one stream closes the file of both, and a container that goes on writing blocks for good \
              (copyPipes in process/io.go counts the second user alone)",
    },
    Deviation {
        case: "output::a_stream_may_be_left_out",
        fails: Fails::Always,
        shows: "unable to copy pipes",
        why: "a FIFO for standard output alone is an error: the empty name is opened (copyPipes in process/io.go)",
    },
    Deviation {
        case: "refusals::a_running_exec_is_not_deleted",
        fails: Fails::Always,
        shows: "Some(Unknown)",
        why: UNCODED,
    },
    Deviation {
        case: "refusals::a_running_task_is_not_deleted",
        fails: Fails::Always,
        shows: "Some(Unknown)",
        why: UNCODED,
    },
    Deviation {
        case: "refusals::a_running_task_is_not_started",
        fails: Fails::Always,
        shows: "Some(Unknown)",
        why: UNCODED,
    },
    Deviation {
        case: "refusals::an_ended_task_is_not_started",
        fails: Fails::Always,
        shows: "Some(Unknown)",
        why: UNCODED,
    },
    Deviation {
        case: "refusals::an_ended_task_takes_no_exec",
        fails: Fails::Always,
        shows: "Some(Unknown)",
        why: UNCODED,
    },
    Deviation {
        case: "refusals::an_exec_that_does_not_exist_is_not_found",
        fails: Fails::Always,
        shows: "Some(Unknown)",
        why: "CloseIO does not translate its error, so that clients see Unknown (task/service.go)",
    },
    Deviation {
        case: "refusals::an_id_is_used_once",
        fails: Fails::Always,
        shows: "Some(Unknown)",
        why: "a second create is left to runc to refuse, with its text and no code (runc/container.go)",
    },
    Deviation {
        case: "terminal::without_clients_it_works",
        fails: Fails::Always,
        shows: "failed to start console copy",
        why: "a terminal whose output leads nowhere is an error: the empty name is opened (runc/platform.go)",
    },
];
