"""The log in arrays by several processes: recovery, rebuilding derived files, splits for tasks on many machines."""
