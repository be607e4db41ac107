# SPDX-License-Identifier: Apache-2.0
"""Hosts ask whether this package is there; what they call is in flash_attn_interface."""
