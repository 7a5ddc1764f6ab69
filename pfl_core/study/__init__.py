"""What every paper's study is made of: settings, data frames, statistics, comparison, claims, plots."""
