"""The audit log: who did what to the cluster, who was refused it, and who could not say who they are."""
