# SPDX-License-Identifier: Apache-2.0
"""The package that holds xFormers' operators; nothing is imported from it here."""
