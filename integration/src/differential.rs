//! The differential test: the same pods on a node of Berth and on one of the real kubelet, in one cluster, and all that can be seen of
//! them compared.
//!
//! A [`case::Case`] is a pod. It is given to both nodes ([`place::Place`]), looked at when it has come to what it comes to, when its
//! process was killed, when the agents were started anew and when it was deleted ([`play`]). What was seen is a value
//! ([`observe`]) from which what no two pods have in common is taken away ([`plain`]); the differences of two values ([`compare`])
//! are explained ([`explained`]) or told ([`report`]).

pub mod case;
pub mod catalogue;
pub mod compare;
pub mod explained;
pub mod generate;
pub mod observe;
pub mod place;
pub mod plain;
pub mod play;
pub mod report;
pub mod settle;
